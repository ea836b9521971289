"""KL between policy and reference: per-token estimators, and controllers of the KL coefficient in the reward.

An estimator takes log-probs of the sampled tokens, (log_prob, ref_log_prob), any shape, and returns the same shape. One
that needs `exact` also takes the KL over the whole vocabulary as a keyword argument. John Schulman, "Approximating KL
divergence" (2020), names k1, k2, k3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from burnish.registry import Registry

KL_ESTIMATORS = Registry("KL estimator", key="algorithm.kl_penalty")
KL_CONTROLLERS = Registry("KL controller", key="algorithm.kl_ctrl.type")


def kl_penalty(
    log_prob: Tensor,
    ref_log_prob: Tensor,
    name: str,
    logits: Tensor | None = None,
    ref_logits: Tensor | None = None,
    *,
    exact: Tensor | None = None,
    clamp: float | None = None,
) -> Tensor:
    """Apply the named estimator to each token, clamped to +-clamp. `full` needs `exact`, or both logits."""
    entry = KL_ESTIMATORS[name]
    kwargs = {}
    if "exact" in entry.needs:
        if exact is None:
            if logits is None or ref_logits is None:
                raise ValueError(f"KL estimator {name!r} needs the logits of policy and reference")
            exact = full_kl(logits, ref_logits)
        kwargs["exact"] = exact
    value = entry.load()(log_prob, ref_log_prob, **kwargs)
    return value if clamp is None else value.clamp(-clamp, clamp)


@KL_ESTIMATORS.register("kl", "k1")
def k1(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """x = log pi - log ref. Unbiased; as a loss its gradient is that of log pi, not of the KL."""
    return log_prob - ref_log_prob


@KL_ESTIMATORS.register("abs")
def absolute(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """|x|"""
    return (log_prob - ref_log_prob).abs()


@KL_ESTIMATORS.register("mse", "k2")
def k2(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """x^2 / 2. Biased value; its gradient is unbiased for the KL's."""
    return 0.5 * (log_prob - ref_log_prob).square()


@KL_ESTIMATORS.register("low_var_kl", "k3")
def k3(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """exp(-x) + x - 1, with -x clamped to +-20 and the value to +-10. Unbiased, never negative, low variance."""
    y = (ref_log_prob - log_prob).clamp(-20, 20)
    return (y.exp() - y - 1).clamp(-10, 10)


@KL_ESTIMATORS.register("full", needs={"exact"})
def full(log_prob: Tensor, ref_log_prob: Tensor, *, exact: Tensor) -> Tensor:
    """The KL itself, over the whole vocabulary."""
    return exact


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """sum_v p_v (log p_v - log q_v): [..., V] -> [...]. The caller limits the number of rows."""
    log_p, log_q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    # A token of probability 0 (logit -inf) contributes 0.
    gap = torch.where(log_p == -torch.inf, torch.zeros_like(log_p), log_p - log_q)
    return (log_p.exp() * gap).sum(-1)


def with_k2_gradient(estimator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The estimator's value with k2's gradient; registered under names ending in "+"."""

    def straight_through(log_prob: Tensor, ref_log_prob: Tensor, **exact: Tensor) -> Tensor:
        backward = k2(log_prob, ref_log_prob)
        return estimator(log_prob, ref_log_prob, **exact).detach() + backward - backward.detach()

    straight_through.__doc__ = f"{estimator.__name__}'s value with k2's gradient."
    return straight_through


for _entry in list(KL_ESTIMATORS.entries.values()):
    KL_ESTIMATORS.register(f"{_entry.name}+", needs=_entry.needs)(with_k2_gradient(_entry.value))


@KL_CONTROLLERS.register("fixed")
class FixedKL:
    """A constant coefficient. Accepts the settings of AdaptiveKL, so that both are built alike."""

    def __init__(self, kl_coef: float, target_kl: float = 0.1, horizon: float = 10_000) -> None:
        self.value = kl_coef

    def update(self, kl: float, num_trajectories: int) -> None:
        """Does nothing: the coefficient is constant."""

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


@KL_CONTROLLERS.register("adaptive")
class AdaptiveKL(FixedKL):
    """A coefficient that keeps the measured KL near a target (Ziegler et al. 2019, arXiv 1909.08593).

    value <- value (1 + clip(KL / target - 1, +-0.2) num_trajectories / horizon)
    """

    def __init__(self, kl_coef: float, target_kl: float = 0.1, horizon: float = 10_000) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise ValueError(f"target_kl and horizon must be positive, not {target_kl} and {horizon}")
        super().__init__(kl_coef)
        self.target_kl = target_kl
        self.horizon = horizon

    def update(self, kl: float, num_trajectories: int) -> None:
        """Adjust the coefficient to the mean KL of a batch."""
        error = min(max(kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * num_trajectories / self.horizon
