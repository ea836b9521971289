"""Whitening of advantages over the batch. Every entry is whiten(x, mask) -> [T], 0 outside the mask."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algos.masked import masked, masked_mean, masked_var, whiten
from burnish.registry import Registry

WHITENINGS = Registry("whitening", key="algorithm.whitening")

SMALLEST_VARIANCE = 1e-8


@WHITENINGS.register("unbiased")
def unbiased(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), the variance over n - 1."""
    return whiten(x, mask)


@WHITENINGS.register("biased")
def biased(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(max(var, 1e-8)), the variance over n."""
    var = masked_var(x, mask, unbiased=False).clamp(min=SMALLEST_VARIANCE)
    return masked((x - masked_mean(x, mask)) * torch.rsqrt(var), mask)


@WHITENINGS.register("mean")
def mean_only(x: Tensor, mask: Tensor) -> Tensor:
    """x - mean."""
    return masked(x - masked_mean(x, mask), mask)
