"""From a loss per token to one number, normalised over the whole mini-batch.

The caller counts the mini-batch once (over all ranks) and hands the same Totals to every micro-batch; the parts then
sum to the loss of the whole, whatever the split. Nothing is divided by the number of ranks: where a backend averages
gradients over D ranks, the caller multiplies by D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algos.masked import beside, masked, row_counts, row_sums
from burnish.registry import Registry

LOSS_AGGREGATIONS = Registry("loss aggregation", key="actor_rollout_ref.actor.loss_agg_mode")


@dataclass(frozen=True)
class Totals:
    """What a whole mini-batch counts: tokens in the loss, and rows that have at least one."""

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
        sums = sums * beside(weights, sums.device).to(sums.dtype)
    counts = row_counts(mask, lengths).to(sums.dtype)
    return LOSS_AGGREGATIONS[mode].load()(sums, counts, totals, scale_length)


@LOSS_AGGREGATIONS.register("token-mean")
def token_mean(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """All tokens weigh the same: sum / tokens."""
    return sums.sum() / _divisor(totals.tokens)


@LOSS_AGGREGATIONS.register("token-sum")
def token_sum(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """The plain sum over tokens."""
    return sums.sum()


@LOSS_AGGREGATIONS.register("seq-mean-token-sum")
def seq_mean_token_sum(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's sum: long rows weigh more."""
    return sums.sum() / _divisor(totals.sequences)


@LOSS_AGGREGATIONS.register("seq-mean-token-mean")
def seq_mean_token_mean(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's mean: all rows weigh the same."""
    return (sums / counts.clamp(min=1)).sum() / _divisor(totals.sequences)


@LOSS_AGGREGATIONS.register("seq-mean-token-sum-norm", needs={"scale_length"})
def seq_mean_token_sum_norm(sums: Tensor, counts: Tensor, totals: Totals, scale_length: float | None) -> Tensor:
    """Mean over rows of each row's sum, divided by one constant length (Dr.GRPO, arXiv 2503.20783)."""
    if scale_length is None:
        raise ValueError("seq-mean-token-sum-norm needs scale_length: loss_scale_factor or the longest response")
    return sums.sum() / _divisor(totals.sequences) / scale_length


def _divisor(count: float) -> float:
    """A mini-batch with nothing in its loss has loss 0, not NaN."""
    return count if count else 1.0
