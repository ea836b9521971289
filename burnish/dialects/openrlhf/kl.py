"""KL to the reference model, in the reward or in the loss."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import ACTOR
from burnish.dialects.openrlhf.translator import Translator

KL_ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
CLAMP = 10.0
CLAMPED = "OpenRLHF clamps the KL of each token to [-10, 10]"


def translate(t: Translator) -> None:
    if t.get("init_kl_coef") < 0:
        t.refuse("init_kl_coef", "must not be negative")
    elif t.get("init_kl_coef") == 0:
        _disabled(t)
    elif t.get("use_kl_loss"):
        _in_loss(t)
    else:
        _in_reward(t)


def _disabled(t: Translator) -> None:
    t.set(
        "init_kl_coef",
        (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"),
        False,
        "0 disables the KL and the reference model",
    )
    for name in ("use_kl_loss", "kl_estimator", "kl_target", "kl_horizon"):
        t.inert(name, f"{t.spelling('init_kl_coef')} is 0: no reference model")


def _in_loss(t: Translator) -> None:
    t.set("use_kl_loss", f"{ACTOR}.use_kl_loss")
    t.set("init_kl_coef", f"{ACTOR}.kl_loss_coef", why=f"in the loss, because of {t.spelling('use_kl_loss')}")
    t.set("kl_estimator", f"{ACTOR}.kl_loss_type", KL_ESTIMATORS[t.get("kl_estimator")])
    t.set_implicit(f"{ACTOR}.kl_loss_clamp", CLAMP, CLAMPED)
    if t.get("kl_target") is not None:
        flag = t.spelling("use_kl_loss")
        t.refuse(
            "kl_target",
            f"the coefficient of a KL loss is constant: remove {flag} to adapt it, or remove this flag",
        )
    t.inert("kl_horizon", "the coefficient of a KL loss is constant")


def _in_reward(t: Translator) -> None:
    why = f"in the reward, without {t.spelling('use_kl_loss')}"
    t.set("init_kl_coef", "algorithm.use_kl_in_reward", True, why)
    t.set("init_kl_coef", "algorithm.kl_ctrl.kl_coef", why=why)
    t.set("kl_estimator", "algorithm.kl_penalty", KL_ESTIMATORS[t.get("kl_estimator")])
    t.set_implicit("algorithm.kl_clamp", CLAMP, CLAMPED)
    if t.get("kl_target") is None:
        t.inert("kl_horizon", f"the coefficient is constant without {t.spelling('kl_target')}")
        return
    t.set("kl_target", "algorithm.kl_ctrl.type", "adaptive", "adaptive coefficient")
    t.set("kl_target", "algorithm.kl_ctrl.target_kl")
    t.set("kl_horizon", "algorithm.kl_ctrl.horizon", why="both count samples")
