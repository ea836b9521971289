"""lr, its schedule, the optimizer: of the policy and of the critic."""

from __future__ import annotations

from fractions import Fraction

from burnish.dialects.mindspeed.reading import Reading
from burnish.dialects.mindspeed.roles import Role, prompts_per_step, prompts_per_update, trained

_STYLES = ("constant", "linear", "cosine")


def read_optimizers(reading: Reading) -> None:
    for role in trained(reading):
        _learning_rate(reading, role)
        _schedule(reading, role)
        _adam(reading, role)


def _learning_rate(reading: Reading, role: Role) -> None:
    lr, style, least = role.section["lr"], role.section["lr_decay_style"], role.section["min_lr"]
    if not lr.value:
        reading.refuse(lr, "there is no learning rate: write lr: 1e-6")
        return
    reading.put(lr, f"{role.key}.optim.lr")
    if style.value not in _STYLES:
        reading.refuse(style, f"no such schedule here; write one of {', '.join(_STYLES)}")
        return
    reading.put(style, f"{role.key}.optim.warmup_style")
    if style.value == "constant":
        reading.inert(least, "a constant learning rate has no floor")
    elif least.value > lr.value:
        reading.refuse(least, f"is above lr={lr.value:g}: the schedule would rise")
    else:
        ratio = least.value / lr.value
        reading.put(least, f"{role.key}.optim.min_lr_ratio", ratio, f"min_lr / lr = {least.value:g} / {lr.value:g}")


def _schedule(reading: Reading, role: Role) -> None:
    warmup = role.section["lr_warmup_fraction"]
    fraction = warmup.value or 0.0
    why = "the first update is at 1/warm-up of lr, not at 0" if fraction else ""
    reading.put(warmup, f"{role.key}.optim.lr_warmup_steps_ratio", float(fraction), why)
    unit = "the schedule moves on at every update, not once per iteration"
    reading.also(role.section["lr_decay_style"], f"{role.key}.optim.lr_step_unit", "update", unit)
    moves = fraction or role.section.value("lr_decay_style") != "constant"
    steps, words = _horizon(reading)
    if not moves or steps is None or steps == reading.actor.value("train_iters"):
        return
    epochs = reading.rl["epochs"]
    if steps.denominator != 1:
        reading.refuse(epochs, f"the schedule would end after {words}, which is no whole number of iterations")
    else:
        key = f"{role.key}.optim.total_training_steps"
        reading.put(epochs, key, int(steps), f"the schedule ends after {words} = {steps} iterations")


def _horizon(reading: Reading) -> tuple[Fraction | None, str]:
    """Iterations after which the schedule ends: it covers train_iters x gbs prompts, and each update takes mini."""
    iterations, gbs = reading.actor.value("train_iters"), reading.actor.value("global_batch_size")
    prompts, mini, epochs = prompts_per_step(reading), prompts_per_update(reading), reading.rl.value("epochs")
    if not (iterations and gbs and prompts and mini and epochs):
        return None, ""
    taken = -(-prompts // mini) * mini * epochs  # prompts by which one iteration moves the schedule on
    return Fraction(iterations * gbs, taken), f"{iterations} x {gbs} / {taken}"


def _adam(reading: Reading, role: Role) -> None:
    section, optim = role.section, f"{role.key}.optim"
    decay = section["weight_decay"]
    reading.put(decay, f"{optim}.weight_decay")
    if decay.value:
        reading.put(decay, f"{optim}.decay_matrices_only", True, why="theirs spares biases and norms")
    reading.put(section["clip_grad"], f"{role.key}.grad_clip")
    first, second = section["adam_beta1"], section["adam_beta2"]
    betas = [float(first.value), float(second.value)]
    for one in (first, second):
        if one.given or one is first:
            reading.put(one, f"{optim}.betas", betas)
    if section.value("optimizer") == "adam":
        reading.inert(section["optimizer"], "the optimizer is AdamW, as there")
    else:
        reading.refuse(section["optimizer"], "only AdamW trains here: write optimizer: adam")
