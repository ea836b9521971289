"""Learning rate, schedule and optimizer of the policy and the critic."""

from __future__ import annotations

from fractions import Fraction

from burnish.dialects.mindspeed.roles import Role, prompts_per_step, prompts_per_update, trained_roles
from burnish.dialects.mindspeed.translator import Translator

_STYLES = ("constant", "linear", "cosine")


def translate_optimizers(t: Translator) -> None:
    for role in trained_roles(t):
        _learning_rate(t, role)
        _schedule(t, role)
        _adam(t, role)


def _learning_rate(t: Translator, role: Role) -> None:
    lr, style, min_lr = role.section["lr"], role.section["lr_decay_style"], role.section["min_lr"]
    if not lr.value:
        t.refuse(lr, "required: write lr: 1e-6")
        return
    t.set(lr, f"{role.key}.optim.lr")
    if style.value not in _STYLES:
        t.refuse(style, f"unknown schedule; write one of {', '.join(_STYLES)}")
        return
    t.set(style, f"{role.key}.optim.warmup_style")
    if style.value == "constant":
        t.inert(min_lr, "a constant learning rate has no minimum")
    elif min_lr.value > lr.value:
        t.refuse(min_lr, f"must not exceed lr={lr.value:g}")
    else:
        ratio = min_lr.value / lr.value
        t.set(min_lr, f"{role.key}.optim.min_lr_ratio", ratio, f"min_lr / lr = {min_lr.value:g} / {lr.value:g}")


def _schedule(t: Translator, role: Role) -> None:
    warmup = role.section["lr_warmup_fraction"]
    fraction = warmup.value or 0.0
    why = "the first update uses lr / warm-up steps, not 0" if fraction else ""
    t.set(warmup, f"{role.key}.optim.lr_warmup_steps_ratio", float(fraction), why)
    unit = "the schedule advances with every update, not once per iteration"
    t.set_implicit(role.section["lr_decay_style"], f"{role.key}.optim.lr_step_unit", "update", unit)
    is_constant = not fraction and role.section.value("lr_decay_style") == "constant"
    steps, formula = _horizon(t)
    if is_constant or steps is None or steps == t.actor.value("train_iters"):
        return
    epochs = t.rl["epochs"]
    if steps.denominator != 1:
        t.refuse(epochs, f"the schedule would end after {formula} iterations, which is not a whole number")
    else:
        key = f"{role.key}.optim.total_training_steps"
        t.set(epochs, key, int(steps), f"the schedule ends after {formula} = {steps} iterations")


def _horizon(t: Translator) -> tuple[Fraction | None, str]:
    """Number of iterations until the schedule ends, and its formula.

    MindSpeed RL's schedule covers train_iters x global_batch_size prompts and advances by a mini-batch per update.
    """
    iterations, gbs = t.actor.value("train_iters"), t.actor.value("global_batch_size")
    prompts, mini, epochs = prompts_per_step(t), prompts_per_update(t), t.rl.value("epochs")
    if not (iterations and gbs and prompts and mini and epochs):
        return None, ""
    consumed = -(-prompts // mini) * mini * epochs  # prompts by which one iteration advances the schedule
    return Fraction(iterations * gbs, consumed), f"{iterations} x {gbs} / {consumed}"


def _adam(t: Translator, role: Role) -> None:
    section, optim = role.section, f"{role.key}.optim"
    decay = section["weight_decay"]
    t.set(decay, f"{optim}.weight_decay")
    if decay.value:
        t.set(decay, f"{optim}.decay_matrices_only", True, why="MindSpeed RL does not decay biases and norms")
    t.set(section["clip_grad"], f"{role.key}.grad_clip")
    first, second = section["adam_beta1"], section["adam_beta2"]
    betas = [float(first.value), float(second.value)]
    for beta in (first, second):
        if beta.explicit or beta is first:
            t.set(beta, f"{optim}.betas", betas)
    if section.value("optimizer") == "adam":
        t.inert(section["optimizer"], "the optimizer is AdamW in both")
    else:
        t.refuse(section["optimizer"], "only AdamW is supported: write optimizer: adam")
