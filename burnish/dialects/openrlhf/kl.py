"""The KL to the reference: one coefficient, in the reward or in the loss."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import ACTOR
from burnish.dialects.openrlhf.writing import Writing

ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
CLAMP = 10.0
CLAMPED = "each token's KL is held within +-10"


def write(w: Writing) -> None:
    if w.get("init_kl_coef") < 0:
        w.refuse("init_kl_coef", "must not be negative")
    elif w.get("init_kl_coef") == 0:
        _nowhere(w)
    elif w.get("use_kl_loss"):
        _in_the_loss(w)
    else:
        _in_the_reward(w)


def _nowhere(w: Writing) -> None:
    w.put("init_kl_coef", (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"), False, "0 is no reference at all")
    for name in ("use_kl_loss", "kl_estimator", "kl_target", "kl_horizon"):
        w.inert(name, f"{w.name('init_kl_coef')} is 0: there is no reference")


def _in_the_loss(w: Writing) -> None:
    w.put("use_kl_loss", f"{ACTOR}.use_kl_loss")
    w.put("init_kl_coef", f"{ACTOR}.kl_loss_coef", why=f"in the loss, by {w.name('use_kl_loss')}")
    w.put("kl_estimator", f"{ACTOR}.kl_loss_type", ESTIMATORS[w.get("kl_estimator")])
    w.itself(f"{ACTOR}.kl_loss_clamp", CLAMP, CLAMPED)
    if w.get("kl_target") is not None:
        flag = w.name("use_kl_loss")
        w.refuse("kl_target", f"a KL in the loss keeps its weight: leave {flag} out to steer it, or leave this out")
    w.inert("kl_horizon", "the weight of a KL in the loss does not move")


def _in_the_reward(w: Writing) -> None:
    why = f"in the reward, without {w.name('use_kl_loss')}"
    w.put("init_kl_coef", "algorithm.use_kl_in_reward", True, why)
    w.put("init_kl_coef", "algorithm.kl_ctrl.kl_coef", why=why)
    w.put("kl_estimator", "algorithm.kl_penalty", ESTIMATORS[w.get("kl_estimator")])
    w.itself("algorithm.kl_clamp", CLAMP, CLAMPED)
    if w.get("kl_target") is None:
        w.inert("kl_horizon", f"the weight does not move without {w.name('kl_target')}")
        return
    w.put("kl_target", "algorithm.kl_ctrl.type", "adaptive", "the weight is steered")
    w.put("kl_target", "algorithm.kl_ctrl.target_kl")
    w.put("kl_horizon", "algorithm.kl_ctrl.horizon", why="both count samples")
