"""verl's core_algos functions with padded [B, T] arguments, computed by burnish.algos.

For users' estimators written for verl, and for numerical comparison. A padded matrix is B rows of T tokens; its mask is
0 on padding. tests/parity/README.md lists where results differ from verl's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnish.algos import kl, losses
from burnish.algos.aggregate import Totals, aggregate, totals
from burnish.algos.losses import LOSSES, LossOptions, weighted
from burnish.compat.padding import full_lengths
from burnish.compat.verl_advantages import *  # noqa: F403
from burnish.compat.verl_rollout_corr import *  # noqa: F403

# Losses


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Aggregate a loss per token; missing counts are those of the matrix."""
    lengths = full_lengths(loss_mat)
    counts = totals(loss_mask.reshape(-1), lengths)
    count = Totals(
        counts.tokens if batch_num_tokens is None else float(batch_num_tokens),
        counts.sequences if global_batch_size is None else float(global_batch_size),
    )
    length = loss_scale_factor or loss_mat.shape[-1]
    return dp_size * aggregate(loss_mat.reshape(-1), loss_mask.reshape(-1), lengths, loss_agg_mode, count, length)


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float | None = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)"""
    low, high = (cliprange if bound is None else bound for bound in (cliprange_low, cliprange_high))
    if low is None or high is None:
        raise ValueError("give cliprange, or both cliprange_low and cliprange_high")
    options = LossOptions(clip_low=low, clip_high=high, clip_c=clip_ratio_c)
    loss, metrics = policy_loss("vanilla", old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, options)
    lower = metrics.get("actor/pg_clipfrac_lower", 0.0)
    numbers = (metrics["actor/pg_clipfrac"], metrics["actor/ppo_kl"], lower)
    clipfrac, ppo_kl, clipfrac_lower = (torch.tensor(number, device=log_prob.device) for number in numbers)
    return loss, clipfrac, ppo_kl, clipfrac_lower


def policy_loss(
    name: str,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    options: LossOptions | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The policy loss of that name and its metrics."""
    row = LOSSES[name]
    columns = [x.reshape(-1) for x in (log_prob, old_log_prob, advantages, response_mask)]
    per_token, metrics = row.load()(*columns, full_lengths(log_prob), options or LossOptions())
    if rollout_is_weights is not None:
        per_token = weighted(row, per_token, rollout_is_weights.reshape(-1), columns[3], full_lengths(log_prob))
    loss = agg_loss(per_token.view_as(log_prob), response_mask, row.metadata.get("aggregation", loss_agg_mode))
    return loss, {f"actor/{key}": share.mean() for key, share in metrics.items()}


def _options(config: Any) -> LossOptions:
    """verl's actor section (clip_ratio..., policy_loss.*) as our options."""
    if config is None:
        return LossOptions()
    both, special = config.clip_ratio, config.policy_loss
    names = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
    return LossOptions(
        clip_low=both if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_high=both if config.clip_ratio_high is None else config.clip_ratio_high,
        clip_c=config.clip_ratio_c,
        tau_pos=getattr(config, "tau_pos", LossOptions.tau_pos),
        tau_neg=getattr(config, "tau_neg", LossOptions.tau_neg),
        **{name: getattr(special, name) for name in names if hasattr(special, name)},
    )


def _verl_loss(name: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """verl's signature of a registered policy loss."""

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        columns = (old_log_prob, log_prob, advantages, response_mask)
        return policy_loss(name, *columns, loss_agg_mode, _options(config), rollout_is_weights)

    compute.__doc__ = f"Policy loss {name!r}: (loss, metrics)."
    return compute


compute_policy_loss_vanilla = _verl_loss("vanilla")
compute_policy_loss_gspo = _verl_loss("gspo")
compute_policy_loss_sapo = _verl_loss("sapo")
compute_policy_loss_gpg = _verl_loss("gpg")
compute_policy_loss_reinforce = compute_policy_loss_gpg
compute_policy_loss_cispo = _verl_loss("cispo")
compute_policy_loss_geo_mean = _verl_loss("geo_mean")
compute_policy_loss_dppo_tv = _verl_loss("dppo_tv")
compute_policy_loss_dppo_kl = _verl_loss("dppo_kl")
compute_policy_loss_clip_cov = _verl_loss("clip_cov")
compute_policy_loss_kl_cov = _verl_loss("kl_cov")


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor]:
    """(loss, vf_clipfrac)"""
    per_token, metrics = losses.value_loss(vpreds, returns, values, response_mask, cliprange_value)
    clipfrac = torch.tensor(metrics["vf_clipfrac"].mean(), device=vpreds.device)
    return agg_loss(per_token, response_mask, loss_agg_mode), clipfrac


def compute_entropy_loss(logits: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean") -> Tensor:
    """The aggregated entropy of logits [B, T, V]."""
    return agg_loss(losses.entropy_from_logits(logits), response_mask, loss_agg_mode)


# KL


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty)


def kl_penalty_forward(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """The value, with the base estimator's gradient."""
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty.removesuffix("+"))


class FixedKLController(kl.FixedKL):
    def __init__(self, kl_coef: float) -> None:
        super().__init__(kl_coef)

    def update(self, current_kl: float, n_steps: int) -> None:
        super().update(current_kl, n_steps)


class AdaptiveKLController(kl.AdaptiveKL):
    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        super().__init__(init_kl_coef, target_kl, horizon)

    def update(self, current_kl: float, n_steps: int) -> None:
        super().update(current_kl, n_steps)


def get_kl_controller(kl_ctrl: Any) -> kl.FixedKL:
    """From verl's algorithm.kl_ctrl section."""
    controller = kl.KL_CONTROLLERS[kl_ctrl.type].load()
    return controller(kl_ctrl.kl_coef, target_kl=kl_ctrl.target_kl, horizon=kl_ctrl.horizon)


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """Scores minus the KL penalty."""
    return token_level_scores - kl_ratio * (old_log_prob - ref_log_prob)


def get_policy_loss_fn(name: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """The policy loss of that name with verl's arguments."""
    return _verl_loss(LOSSES[name].name)
