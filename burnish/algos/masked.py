"""Sums, means and scans over flat ragged columns: [T] tokens of all rows, concatenated, and lengths [rows].

`lengths` is int64 on the CPU; flat tensors may be on any device. A mask is 0/1 of any dtype; values
where it is 0 are never used, so they may be NaN. Memory is linear in the number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-8


class Share(NamedTuple):
    """A mean as numerator and denominator, so that micro-batches and ranks can be summed exactly."""

    total: Tensor
    count: Tensor

    def mean(self) -> float:
        """The mean; 0 if count is 0."""
        count = float(self.count)
        return float(self.total) / count if count else 0.0


Metrics = dict[str, Share]


def add_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Sum the metrics of several micro-batches."""
    totals: Metrics = {}
    for part in parts:
        for name, share in part.items():
            before = totals.get(name)
            totals[name] = share if before is None else Share(before.total + share.total, before.count + share.count)
    return totals


def to_device_async(per_row: Tensor, device: torch.device | str) -> Tensor:
    """Copy to the device without blocking the host."""
    return per_row.to(device, non_blocking=True)


def token_rows(lengths: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Row number of each token: int64 [T]."""
    rows = torch.arange(len(lengths), device=device)
    return rows.repeat_interleave(to_device_async(lengths, device), output_size=int(lengths.sum()))


def tokens_left(lengths: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Tokens from each token to the end of its row, itself included: int64 [T], e.g. 3 2 1 2 1."""
    ends = lengths.cumsum(0)
    return spread(to_device_async(ends, device), lengths) - torch.arange(int(lengths.sum()), device=device)


def row_positions(lengths: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Position of each token in its row, from 0: int64 [T], e.g. 0 1 2 0 1."""
    return spread(to_device_async(lengths, device), lengths) - tokens_left(lengths, device)


def row_sums(x: Tensor, lengths: Tensor) -> Tensor:
    """Sum of each row: [T] -> [rows]. An empty row sums to 0."""
    return x.new_zeros(len(lengths)).index_add(0, token_rows(lengths, x.device), x)


def row_counts(mask: Tensor, lengths: Tensor) -> Tensor:
    """Number of masked-in tokens of each row: int64 [rows]."""
    return row_sums(mask.bool().long(), lengths)


def row_means(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each row under the mask: [T] -> [rows]; 0 if there is no such token."""
    return row_sums(masked(x, mask), lengths) / row_counts(mask, lengths).clamp(min=1)


def spread(per_row: Tensor, lengths: Tensor) -> Tensor:
    """Repeat each row's value on all its tokens: [rows] -> [T]."""
    return per_row.repeat_interleave(to_device_async(lengths, per_row.device), output_size=int(lengths.sum()))


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """x, and 0 outside the mask. Unlike a product, it does not propagate NaN."""
    return torch.where(mask.bool(), x, torch.zeros_like(x))


def masked_share(x: Tensor, mask: Tensor) -> Share:
    """Sum of x under the mask and number of tokens there, detached: a metric."""
    return Share(masked(x.detach().float(), mask).sum(), mask.bool().sum())


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum(x m) / (sum(m) + 1e-8); 0 for an empty mask."""
    return masked(x, mask).sum() / (mask.bool().sum() + EPS)


def masked_var(x: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance under the mask, divided by n - 1 (or by n). Fewer than two tokens have variance 0."""
    count = mask.bool().sum()
    var = masked_mean((x - masked_mean(x, mask)) ** 2, mask)
    if not unbiased:
        return var
    return torch.where(count > 1, var * count / (count - 1).clamp(min=1), torch.zeros_like(var))


def whiten(x: Tensor, mask: Tensor, *, keep_mean: bool = False, unbiased: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), with both taken under the mask; 0 outside it."""
    mean = masked_mean(x, mask)
    white = (x - mean) * torch.rsqrt(masked_var(x, mask, unbiased) + EPS)
    return masked(white + mean if keep_mean else white, mask)


def next_in_row(x: Tensor, lengths: Tensor) -> Tensor:
    """The entry of the following token, 0 on a row's last: [T] -> [T]."""
    if not len(x):
        return x
    return torch.where(tokens_left(lengths, x.device) > 1, x.roll(-1), torch.zeros_like(x))


def reverse_scan(x: Tensor, lengths: Tensor, decay: float = 1.0) -> Tensor:
    """y_t = x_t + decay * y_{t+1} within each row: discounted sums to the row's end, [T] -> [T].

    Doubling: after pass k each entry holds the sum of its next 2^k. log2(longest row) passes over the flat tensor, so
    one long row costs passes, not padding, and a row's result never depends on other rows.
    """
    left = tokens_left(lengths, x.device)
    longest = int(lengths.max()) if len(lengths) else 0
    step = 1
    while step < longest:
        ahead = torch.where(left[:-step] > step, x[step:] * decay**step, torch.zeros_like(x[step:]))
        x = torch.cat([x[:-step] + ahead, x[-step:]])
        step *= 2
    return x
