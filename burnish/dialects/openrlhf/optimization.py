"""Learning rates, optimizer, EMA."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.dialects.openrlhf.roles import ACTOR, has_critic
from burnish.dialects.openrlhf.translator import Translator

# OpenRLHF schedule -> Burnish schedule, and whether it has a warm-up.
# Other schedules fail in OpenRLHF, because it passes min_lr to all of them.
SCHEDULES = {
    "cosine_with_min_lr": ("cosine", True),
    "constant_with_warmup": ("constant", True),
    "constant": ("constant", False),
}
ADAM_EPS = 1e-8
MUON_OPTIONS = ("lr", "momentum", "ns_steps", "nesterov", "no_nesterov")


def translate(t: Translator) -> None:
    t.set("actor_learning_rate", f"{ACTOR}.optim.lr")
    _role(t, f"{ACTOR}.optim", ACTOR, "")
    if has_critic(t):
        t.set("critic_learning_rate", "critic.optim.lr")
        _role(t, "critic.optim", "critic", "critic_")
        t.set("value_clip", "critic.cliprange_value")
    else:
        for name in [flag for flag in t.command.flag_set.flags if flag.startswith("critic_") and flag not in t.handled]:
            t.inert(name, "this run has no critic")
        t.inert("value_clip", "this run has no critic")
    t.set("seed", "trainer.seed")
    if t.get("enable_ema"):
        t.set("enable_ema", f"{ACTOR}.ema_beta", t.get("ema_beta"), f"the value of {t.spelling('ema_beta')}")
        t.set("ema_beta", f"{ACTOR}.ema_beta")
    else:
        t.inert("ema_beta", f"EMA is off without {t.spelling('enable_ema')}")
    t.set("aux_loss_coef", f"{ACTOR}.aux_loss_coef")
    t.inert("ptx_coef", "unused in OpenRLHF v0.9.2 too")
    for name in ("pretrain_data", "pretrain_data_probs", "pretrain_split"):
        if t.has(name):
            t.refuse(name, "OpenRLHF v0.9.2 no longer mixes pretraining data into PPO: remove this flag")


def _role(t: Translator, optim: str, section: str, prefix: str) -> None:
    """`prefix` is critic_ for flags with which later versions configure the critic; else one flag sets both roles."""

    def flag(name: str) -> str:
        return f"{prefix}{name}" if t.get(f"{prefix}{name}") is not None else name

    schedule(t, optim, flag)
    t.set_implicit(f"{optim}.lr_step_unit", "update", "the schedule advances with every update, not once per iteration")
    t.set(flag("adam_betas"), f"{optim}.betas")
    weight_decay(t, flag("l2"), optim)
    t.set(flag("max_norm"), f"{section}.grad_clip")
    require_adamw(t, flag("optim"), flag("adam_eps"), [f"{prefix}muon_{name}" for name in MUON_OPTIONS])


def schedule(t: Translator, optim: str, flag: Callable[[str], str] = str, names: Sequence[str] = ()) -> None:
    """Translate the schedule. `names` are the keys of style, minimum and warm-up if they differ from those of RL."""
    style, min_ratio, warmup = names or ("warmup_style", "min_lr_ratio", "lr_warmup_steps_ratio")
    chosen, ratio = t.get(flag("lr_scheduler")), flag("lr_warmup_ratio")
    if chosen not in SCHEDULES:
        t.refuse(flag("lr_scheduler"), f"OpenRLHF supports {', '.join(SCHEDULES)} only: others fail at start-up")
        t.handled |= {ratio, flag("min_lr_ratio")}
        return
    ours, has_warmup = SCHEDULES[chosen]
    t.set(flag("lr_scheduler"), f"{optim}.{style}", ours)
    min_lr = t.get(flag("min_lr_ratio")) if ours == "cosine" else 0.0
    why = f"{chosen} ends at {min_lr:g} of the peak" if min_lr else ""
    if t.command.is_dotted or t.has(flag("min_lr_ratio")):
        t.set(flag("min_lr_ratio"), f"{optim}.{min_ratio}", min_lr, why)
    else:
        t.set_implicit(f"{optim}.{min_ratio}", min_lr, why)
    if has_warmup:
        why = "fraction of all updates; OpenRLHF starts at 0, Burnish at peak / warm-up steps"
        t.set(ratio, f"{optim}.{warmup}", why=why)
    else:
        t.set(ratio, f"{optim}.{warmup}", 0.0, f"{chosen} has no warm-up")


def weight_decay(t: Translator, name: str, optim: str) -> None:
    """Weight decay. OpenRLHF does not decay biases and norms."""
    t.set(name, f"{optim}.weight_decay")
    if t.get(name):
        t.set(name, f"{optim}.decay_matrices_only", True, "OpenRLHF does not decay biases and norms")


def require_adamw(t: Translator, optim: str, eps: str, muon: Sequence[str]) -> None:
    if t.get(optim) != "adam":
        t.refuse(optim, f"only AdamW is supported: remove it, or write {t.spelling(optim)} adam")
    else:
        t.inert(optim, "the optimizer is AdamW")
    if t.get(eps) != ADAM_EPS:
        t.refuse(eps, f"only the epsilon {ADAM_EPS:g} is supported")
    else:
        t.inert(eps, f"AdamW's epsilon is {ADAM_EPS:g}")
    for name in muon:
        t.inert(name, f"only {t.spelling(optim)} muon uses it")
