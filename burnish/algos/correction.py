"""Rollout correction: compensate for the difference between the engine's and the trainer's probabilities.

Everything derives from the log-ratio x = log pi_trainer - log pi_engine of sampled tokens, flat [T] with row lengths.
Importance weights multiply a token's policy loss and do not change the denominator; rejection masks tokens out of the
loss. Both are computed once per step, before the first backward pass.

A rejection measure takes (x, mask, lengths) and returns one number per token [T]; sequence measures repeat a row's
number on all its tokens. Metadata `ratio`: the measure is a log-ratio with a lower and an upper bound, given as ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.algos.masked import masked, masked_share, row_counts, row_means, row_sums, spread
from burnish.registry import Registry

IS_LEVELS = Registry("importance-weight level", key="algorithm.rollout_correction.rollout_is")
REJECTIONS = Registry("rejection measure", key="algorithm.rollout_correction.rollout_rs")

LARGEST_LOG = 20.0  # bound of |x|, so that sums of exp(x) do not overflow float32

Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Weighting:
    """How ratios become weights: unchanged within [low, high]; outside, clamped to the bound, or set to 0 (`drop`)."""

    level: str = "token"
    low: float = 0.0
    high: float = 2.0
    drop: bool = False  # IcePop (arXiv 2510.18855)
    normalize: bool = False  # to mean 1 over the batch


@dataclass(frozen=True)
class Rejection:
    """Mask out tokens whose `measure` lies outside [low, high]; bounds of a ratio measure are ratios."""

    measure: str
    low: float | None
    high: float


class Corrected(NamedTuple):
    """Columns along the responses; None if not configured."""

    weights: Tensor | None  # [T], 0 outside the mask
    kept: Tensor | None  # [T], 1 in the loss
    metrics: dict[str, float]


def correct(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    lengths: Tensor,
    weighting: Weighting | None = None,
    rejections: Sequence[Rejection] = (),
    veto: float | None = None,
) -> Corrected:
    """Importance weights, rejection mask and metrics of a whole batch. `log_probs` are the trainer's."""
    x = log_ratio(log_probs, rollout_log_probs, mask)
    weights, kept, metrics = None, None, {}
    if weighting is not None:
        weights, metrics = importance_weights(x, mask, lengths, weighting)
    if rejections or veto is not None:
        kept, rejection_metrics = rejection_mask(x, mask, lengths, rejections, veto)
        metrics |= rejection_metrics
    return Corrected(weights, kept, metrics)


def log_ratio(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """x, and 0 outside the mask."""
    return masked((log_probs - rollout_log_probs).detach(), mask)


# Weights


def importance_weights(
    x: Tensor, mask: Tensor, lengths: Tensor, weighting: Weighting
) -> tuple[Tensor, dict[str, float]]:
    """w = exp(x), per token or as the product over a row's masked-in tokens, within the bounds; 0 outside the mask."""
    x = masked(x, mask)
    raw = masked(IS_LEVELS[weighting.level].load()(x, lengths).clamp(-LARGEST_LOG, LARGEST_LOG).exp(), mask)
    inside = (raw >= weighting.low) & (raw <= weighting.high)
    bounded = torch.zeros_like(raw) if weighting.drop else raw.clamp(weighting.low, weighting.high)
    weights = masked(torch.where(inside, raw, bounded), mask)
    metrics = weight_metrics(weights, inside, mask)
    if weighting.normalize:
        mean = IS_LEVELS[weighting.level].metadata["mean"](weights, mask, lengths)
        metrics["rollout_corr/rollout_is_batch_norm_factor"] = float(mean)
        weights = weights / torch.where(mean > 1e-8, mean, torch.ones_like(mean))
    return weights, metrics


def _mean_of_tokens(weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    return weights.sum() / mask.bool().sum().clamp(min=1)


def _mean_of_rows(weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    counted = (row_counts(mask, lengths) > 0).sum()
    return row_means(weights, mask, lengths).sum() / counted.clamp(min=1)


@IS_LEVELS.register("token", mean=_mean_of_tokens)
def token_level(x: Tensor, lengths: Tensor) -> Tensor:
    """The ratio of each token: biased, low variance."""
    return x


@IS_LEVELS.register("sequence", mean=_mean_of_rows)
def sequence_level(x: Tensor, lengths: Tensor) -> Tensor:
    """The product of a row's ratios, on all its tokens: unbiased, high variance."""
    return spread(row_sums(x, lengths), lengths)


def weight_metrics(weights: Tensor, inside: Tensor, mask: Tensor) -> dict[str, float]:
    """Statistics over masked-in tokens before normalization; empty if there are none."""
    values = weights[mask.bool()].double()
    if values.numel() == 0:
        return {}
    squares = float(values.square().sum())
    return {
        "rollout_corr/rollout_is_mean": float(values.mean()),
        "rollout_corr/rollout_is_std": float(values.std(correction=0)),
        "rollout_corr/rollout_is_max": float(values.max()),
        "rollout_corr/rollout_is_min": float(values.min()),
        "rollout_corr/rollout_is_eff_sample_size": float(values.sum()) ** 2 / (squares * values.numel())
        if squares
        else 0.0,
        "rollout_corr/rollout_is_truncated": masked_share(~inside, mask).mean(),
    }


# Rejection


def rejection_mask(
    x: Tensor, mask: Tensor, lengths: Tensor, rejections: Sequence[Rejection], veto: float | None = None
) -> tuple[Tensor, dict[str, float]]:
    """1 on tokens that pass every measure, in rows without a ratio below `veto`; and the fractions that fail."""
    kept, metrics = torch.ones_like(x, dtype=torch.bool), {}
    for rejection in rejections:
        passed = within(rejection, x, mask, lengths)
        kept &= passed
        name = f"rollout_corr/rollout_rs_{rejection.measure}_masked_fraction"
        metrics[name] = masked_share(~passed, mask).mean()
    if veto is not None:
        vetoed = row_counts(mask.bool() & (x < math.log(veto)), lengths) > 0
        kept &= ~spread(vetoed, lengths)
        metrics["rollout_corr/rollout_is_veto_fraction"] = float(vetoed.double().mean()) if len(lengths) else 0.0
    touched = row_counts(mask.bool() & ~kept, lengths) > 0
    metrics["rollout_corr/rollout_rs_masked_fraction"] = masked_share(~kept, mask).mean()
    metrics["rollout_corr/rollout_rs_seq_masked_fraction"] = float(touched.double().mean()) if len(lengths) else 0.0
    return kept.to(x.dtype), metrics


def within(rejection: Rejection, x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Which tokens pass one measure: bool [T]."""
    entry = REJECTIONS[rejection.measure]
    statistic = entry.load()(x, mask, lengths)
    low, high = rejection.low, rejection.high
    if entry.metadata["ratio"]:
        low, high = math.log(1 / high if low is None else low), math.log(high)
    passed = statistic <= high
    return passed if low is None else passed & (statistic >= low)


def k1(x: Tensor) -> Tensor:
    """-x = log(pi_engine / pi_trainer)."""
    return -x.clamp(-LARGEST_LOG, LARGEST_LOG)


def k2(x: Tensor) -> Tensor:
    """x^2 / 2"""
    return 0.5 * x.clamp(-LARGEST_LOG, LARGEST_LOG).square()


def k3(x: Tensor) -> Tensor:
    """exp(x) - 1 - x: never negative; its mean estimates KL(engine || trainer)."""
    x = x.clamp(-LARGEST_LOG, LARGEST_LOG)
    return x.exp() - 1 - x


def ratio(x: Tensor) -> Tensor:
    """x = log(pi_trainer / pi_engine)."""
    return x


def row_maxima(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Maximum of each row under the mask: [T] -> [rows]; 0 where a row has no such token."""
    rows = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths.to(x.device))
    lowest = torch.full((len(lengths),), -torch.inf, dtype=x.dtype, device=x.device)
    maxima = lowest.scatter_reduce(0, rows[mask.bool()], x[mask.bool()], "amax")
    return torch.where(maxima == -torch.inf, torch.zeros_like(maxima), maxima)


def _per_token(divergence: Callable[[Tensor], Tensor]) -> Measure:
    return lambda x, mask, lengths: divergence(x)


def _per_row(divergence: Callable[[Tensor], Tensor], reduce: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Measure:
    return lambda x, mask, lengths: spread(reduce(divergence(x), mask, lengths), lengths)


def _masked_row_sums(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    return row_sums(masked(x, mask), lengths)


for _name, _divergence in {"k1": k1, "k2": k2, "k3": k3}.items():
    _is_ratio = _divergence is k1
    REJECTIONS.register(f"token_{_name}", ratio=_is_ratio)(_per_token(_divergence))
    REJECTIONS.register(f"seq_sum_{_name}", ratio=_is_ratio)(_per_row(_divergence, _masked_row_sums))
    REJECTIONS.register(f"seq_mean_{_name}", ratio=_is_ratio)(_per_row(_divergence, row_means))
    if not _is_ratio:
        REJECTIONS.register(f"seq_max_{_name}", ratio=False)(_per_row(_divergence, row_maxima))

# verl's older names; their bounds apply to pi_trainer / pi_engine.
REJECTIONS.register("token", ratio=True)(_per_token(ratio))
REJECTIONS.register("sequence", ratio=True)(_per_row(ratio, _masked_row_sums))
REJECTIONS.register("geometric", ratio=True)(_per_row(ratio, row_means))
