"""Learning rates, the optimizer, moving averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.dialects.openrlhf.estimators import ACTOR, has_critic
from burnish.dialects.openrlhf.writing import Writing

# Their schedule -> ours, and whether it warms up. Others raise in theirs: it passes min_lr to each of them.
SCHEDULES = {
    "cosine_with_min_lr": ("cosine", True),
    "constant_with_warmup": ("constant", True),
    "constant": ("constant", False),
}
ADAM_EPS = 1e-8
MUON = ("lr", "momentum", "ns_steps", "nesterov", "no_nesterov")


def write(w: Writing) -> None:
    w.put("actor_learning_rate", f"{ACTOR}.optim.lr")
    _role(w, f"{ACTOR}.optim", ACTOR, "")
    if has_critic(w):
        w.put("critic_learning_rate", "critic.optim.lr")
        _role(w, "critic.optim", "critic", "critic_")
        w.put("value_clip", "critic.cliprange_value")
    else:
        for name in [one for one in w.command.vocabulary.flags if one.startswith("critic_") and one not in w.told]:
            w.inert(name, "there is no critic in this run")
        w.inert("value_clip", "there is no critic in this run")
    w.put("seed", "trainer.seed")
    if w.get("enable_ema"):
        w.put("enable_ema", f"{ACTOR}.ema_beta", w.get("ema_beta"), f"with {w.name('ema_beta')}")
        w.put("ema_beta", f"{ACTOR}.ema_beta")
    else:
        w.inert("ema_beta", f"there is no moving average without {w.name('enable_ema')}")
    w.put("aux_loss_coef", f"{ACTOR}.aux_loss_coef")
    w.inert("ptx_coef", "nothing reads it in v0.9.2 either")
    for name in ("pretrain_data", "pretrain_data_probs", "pretrain_split"):
        if w.given(name):
            w.refuse(name, "mixing pretraining text into PPO ended before v0.9.2: leave it out")


def _role(w: Writing, optim: str, section: str, prefix: str) -> None:
    """`prefix` is critic_ where a later version sets the critic by itself; else one flag holds for both roles."""

    def flag(name: str) -> str:
        return f"{prefix}{name}" if w.get(f"{prefix}{name}") is not None else name

    schedule(w, optim, flag)
    w.itself(f"{optim}.lr_step_unit", "update", "the learning rate moves with every update, not with every iteration")
    w.put(flag("adam_betas"), f"{optim}.betas")
    weight_decay(w, flag("l2"), optim)
    w.put(flag("max_norm"), f"{section}.grad_clip")
    plain_adam(w, flag("optim"), flag("adam_eps"), [f"{prefix}muon_{name}" for name in MUON])


def schedule(w: Writing, optim: str, flag: Callable[[str], str] = str, names: Sequence[str] = ()) -> None:
    """`names` are our keys of style, floor and warm-up where they are not those of reinforcement."""
    style, floor, warmup = names or ("warmup_style", "min_lr_ratio", "lr_warmup_steps_ratio")
    chosen, ratio = w.get(flag("lr_scheduler")), flag("lr_warmup_ratio")
    if chosen not in SCHEDULES:
        w.refuse(flag("lr_scheduler"), f"theirs runs with {', '.join(SCHEDULES)} only: others stop at its start")
        w.told |= {ratio, flag("min_lr_ratio")}
        return
    ours, warms = SCHEDULES[chosen]
    w.put(flag("lr_scheduler"), f"{optim}.{style}", ours)
    low = w.get(flag("min_lr_ratio")) if ours == "cosine" else 0.0
    why = f"{chosen} ends at {low:g} of the peak" if low else ""
    if w.command.is_dotted:
        w.put(flag("min_lr_ratio"), f"{optim}.{floor}", low, why)
    else:
        w.itself(f"{optim}.{floor}", low, why)
    if warms:
        why = "of all updates, rounded up; theirs starts at 0, here the first update is at 1/warm-up of the peak"
        w.put(ratio, f"{optim}.{warmup}", why=why)
    else:
        w.put(ratio, f"{optim}.{warmup}", 0.0, f"{chosen} has no warm-up, whatever the ratio")


def weight_decay(w: Writing, name: str, optim: str) -> None:
    """Theirs leaves biases and norms out."""
    w.put(name, f"{optim}.weight_decay")
    if w.get(name):
        w.put(name, f"{optim}.decay_matrices_only", True, "theirs spares biases and norms")


def plain_adam(w: Writing, optim: str, eps: str, muon: Sequence[str]) -> None:
    if w.get(optim) != "adam":
        w.refuse(optim, f"the optimizer is AdamW: leave it out, or {w.name(optim)} adam")
    else:
        w.inert(optim, "the optimizer is AdamW")
    if w.get(eps) != ADAM_EPS:
        w.refuse(eps, f"AdamW's epsilon is {ADAM_EPS:g}")
    else:
        w.inert(eps, f"AdamW's epsilon is {ADAM_EPS:g}")
    for name in muon:
        w.inert(name, f"only {w.name(optim)} muon reads it")
