"""verl's rollout correction and policy filtration functions with padded [B, T] arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algos.correction import (
    Rejection,
    Weighting,
    importance_weights,
    log_ratio,
    rejection_mask,
)
from burnish.algos.filtration import resample
from burnish.compat.padding import full_lengths

Threshold = str | float


def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: Threshold = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """(weights, metrics); a threshold "low_high" drops weights outside it."""
    low, high = _bounds(rollout_is_threshold)
    weighting = Weighting(rollout_is, low or 0.0, high, low is not None, rollout_is_batch_normalize)
    weights, metrics = importance_weights(*_columns(log_ratio, response_mask), weighting)
    return weights.view_as(log_ratio), metrics


def compute_rollout_rejection_mask(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: Threshold | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """(response_mask without rejected tokens, metrics)."""
    if rollout_rs_threshold is None:
        raise ValueError("rollout_rs needs rollout_rs_threshold")
    measures = list(dict.fromkeys(part.strip() for part in rollout_rs.split(",")))
    texts = str(rollout_rs_threshold).split(",")
    if len(texts) not in (1, len(measures)):
        raise ValueError(f"{len(measures)} measures need one threshold each, or one for all, not {len(texts)}")
    texts = texts * len(measures) if len(texts) == 1 else texts
    rejections = [Rejection(measure, *_bounds(text)) for measure, text in zip(measures, texts, strict=True)]
    kept, metrics = rejection_mask(*_columns(log_ratio, response_mask), rejections)
    return (response_mask * kept.view_as(log_ratio)).to(response_mask.dtype), metrics


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: Threshold = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: Threshold | None = None,
) -> tuple[Tensor | None, Tensor, dict[str, float]]:
    """(weights or None, response_mask less what is rejected, metrics)."""
    gap = log_ratio(old_log_prob, rollout_log_prob, response_mask)
    weights, kept, metrics = None, response_mask, {}
    if rollout_is is not None:
        settings = (rollout_is, rollout_is_threshold, rollout_is_batch_normalize)
        weights, metrics = compute_rollout_correction_weights(gap, response_mask, *settings)
    if rollout_rs is not None:
        kept, rejection_metrics = compute_rollout_rejection_mask(gap, response_mask, rollout_rs, rollout_rs_threshold)
        metrics |= rejection_metrics
    return weights, kept, metrics


def compute_pf_ppo_reweight_data(
    token_level_scores: Tensor,
    reweight_method: str = "pow",
    weight_pow: float = 2.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The rows of verl's resampled batch, in order: int64 [B]. Without a generator the draw is always the same."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    counts = resample(token_level_scores.sum(-1), reweight_method, weight_pow, generator)
    return torch.arange(len(counts)).repeat_interleave(counts.long())


def _columns(matrix: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return matrix.reshape(-1), response_mask.reshape(-1), full_lengths(matrix)


def _bounds(threshold: Threshold) -> tuple[float | None, float]:
    low, _, high = str(threshold).rpartition("_")
    return float(low) if low else None, float(high)
