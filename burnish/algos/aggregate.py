"""Aggregate a loss per token to one number, normalized over the whole mini-batch.

The caller counts tokens and sequences of the mini-batch once, over all ranks, and passes the same Totals for every
micro-batch. The results then sum to the loss of the mini-batch, however it is split. Nothing is divided by the number
of ranks: if a backend averages gradients over D ranks, the caller multiplies by D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algos.masked import masked, row_counts, row_sums, to_device_async
from burnish.registry import Registry

LOSS_AGGREGATIONS = Registry("loss aggregation", key="actor_rollout_ref.actor.loss_agg_mode")


@dataclass(frozen=True)
class Totals:
    """Counts of a whole mini-batch: tokens in the loss, and sequences with at least one such token."""

    tokens: float
    sequences: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.tokens + other.tokens, self.sequences + other.sequences)


def totals(mask: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Totals:
    """Count a mini-batch, or one rank's share of it. A row of weight w counts w times."""
    counts = row_counts(mask, lengths).cpu().double()
    weights = torch.ones_like(counts) if weights is None else weights.to(counts)
    return Totals(float((counts * weights).sum()), float(((counts > 0) * weights).sum()))


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    lengths: Tensor,
    mode: str,
    totals: Totals,
    scale_length: float | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """This micro-batch's part of the mini-batch's loss: [T] -> scalar, differentiable.

    `weights` [rows]: a row of weight w acts as w copies of it. `scale_length`: the length of seq-mean-token-sum-norm.
    """
    sums = row_sums(masked(per_token, mask), lengths)
    if weights is not None:
        sums = sums * to_device_async(weights, sums.device).to(sums.dtype)
    counts = row_counts(mask, lengths).to(sums.dtype)
    return LOSS_AGGREGATIONS[mode].load()(sums, counts, totals, scale_length)


@LOSS_AGGREGATIONS.register("token-mean")
def token_mean(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over tokens: every token has the same weight."""
    return sums.sum() / _divisor(totals.tokens)


@LOSS_AGGREGATIONS.register("token-sum")
def token_sum(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Sum over tokens."""
    return sums.sum()


@LOSS_AGGREGATIONS.register("seq-mean-token-sum")
def seq_mean_token_sum(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's sum: long rows have more weight."""
    return sums.sum() / _divisor(totals.sequences)


@LOSS_AGGREGATIONS.register("seq-mean-token-mean")
def seq_mean_token_mean(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's mean: every row has the same weight."""
    return (sums / counts.clamp(min=1)).sum() / _divisor(totals.sequences)


@LOSS_AGGREGATIONS.register("seq-mean-token-sum-norm", needs={"scale_length"})
def seq_mean_token_sum_norm(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's sum, divided by one constant length (Dr.GRPO, arXiv 2503.20783)."""
    if scale_length is None:
        raise ValueError("seq-mean-token-sum-norm needs scale_length: loss_scale_factor or the longest response")
    return sums.sum() / _divisor(totals.sequences) / scale_length


def _divisor(count: float) -> float:
    """1 for an empty mini-batch, whose loss is then 0 instead of NaN."""
    return count if count else 1.0
