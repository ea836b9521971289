"""What is done to one chunk of logits: statistics of its rows, and gradients in the place of the logits. In torch.

A chunk is the plain product hidden @ weight.T of a few rows, in the format of the product. A LogitKernel owns it and
may write over it. kernels/head.py does the same in Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.sizing import torch_entry_bytes


class Sharpness(NamedTuple):
    """From a product to logits: capped by a tanh where there is a cap, then divided by the temperature."""

    temperature: float = 1.0
    softcap: float | None = None


class Measured(NamedTuple):
    """Of each row: log-sum-exp, log-prob of its token, and entropy where it was asked for."""

    normaliser: Tensor
    log_probs: Tensor
    entropy: Tensor | None


class Gap(NamedTuple):
    """Of each row: the two log-sum-exps, and the KL from the first to the second."""

    normaliser: Tensor
    ref_normaliser: Tensor
    kl: Tensor


class LogitKernel(Protocol):
    """The four things that are done to chunks."""

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        """Bytes alive at once for each entry of a chunk."""
        ...

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        """`keep` says that the product is needed afterwards."""
        ...

    def differentiate(
        self,
        product: Tensor,
        tokens: Tensor,
        shape: Sharpness,
        measured: Measured,
        grad: Tensor,
        grad_entropy: Tensor | None,
    ) -> Tensor:
        """The product's gradient, in its format, for these gradients of log-prob and entropy."""
        ...

    def measure_gap(self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap: ...

    def differentiate_gap(
        self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
    ) -> Tensor:
        """The first product's gradient for this gradient of the KL."""
        ...


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Rows are summed up in float32, or in float64 where the product is that."""
    return torch.promote_types(dtype, torch.float32)


def logits_of(product: Tensor, shape: Sharpness) -> Tensor:
    """Capped and divided by the temperature, in the format of statistics; written over a product of that format."""
    logits = product.to(statistics_dtype(product.dtype))
    if shape.softcap is not None:
        logits.div_(shape.softcap).tanh_().mul_(shape.softcap)
    return logits.div_(shape.temperature) if shape.temperature != 1.0 else logits


def measure_logits(product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool) -> Measured:
    """The product is lost."""
    logits = logits_of(product, shape)
    at_token = logits.gather(-1, tokens[:, None]).squeeze(-1)
    largest = logits.amax(-1)
    logits.sub_(largest[:, None])
    weights = logits.exp() if with_entropy else logits.exp_()
    total = weights.sum(-1)
    normaliser = largest + total.log()
    entropy = total.log() - weights.mul_(logits).sum(-1) / total if with_entropy else None
    return Measured(normaliser, at_token - normaliser, entropy)


def logit_gradient(
    product: Tensor,
    tokens: Tensor,
    shape: Sharpness,
    measured: Measured,
    grad: Tensor,
    grad_entropy: Tensor | None,
) -> Tensor:
    """dlogp/dz = 1[token] - p and dH/dz = -p (log p + H), through temperature and cap. The product is lost."""
    logits = logits_of(product, shape)
    slope = cap_slope(logits, shape)
    log_p = logits.sub_(measured.normaliser[:, None])
    grad = (grad / shape.temperature)[:, None]
    if grad_entropy is None:
        found = log_p.exp_().mul_(-grad)
    else:
        p = log_p.exp()
        found = log_p.add_(measured.entropy[:, None]).mul_((grad_entropy / shape.temperature)[:, None])
        found.add_(grad).mul_(p).neg_()
    found.scatter_add_(-1, tokens[:, None], grad)
    return _into(product, found if slope is None else found.mul_(slope))


def cap_slope(logits: Tensor, shape: Sharpness) -> Tensor | None:
    """d(capped) / d(product) = 1 - (capped / cap)^2."""
    if shape.softcap is None:
        return None
    return (logits * (shape.temperature / shape.softcap)).square_().neg_().add_(1)


def measure_gap(product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap:
    """Both products are lost."""
    logits, ref_logits = logits_of(product, shape), logits_of(ref_product, ref_shape)
    normaliser, ref_normaliser = logits.logsumexp(-1), ref_logits.logsumexp(-1)
    logits.sub_(normaliser[:, None])
    log_gap = torch.sub(logits, ref_logits.sub_(ref_normaliser[:, None]), out=ref_logits)
    return Gap(normaliser, ref_normaliser, logits.exp_().mul_(log_gap).sum(-1))


def gap_gradient(
    product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
) -> Tensor:
    """dKL/dz = p (log p - log q - KL), through temperature and cap. Both products are lost."""
    logits, ref_logits = logits_of(product, shape), logits_of(ref_product, ref_shape)
    slope = cap_slope(logits, shape)
    log_p = logits.sub_(gap.normaliser[:, None])
    log_gap = torch.sub(log_p, ref_logits.sub_(gap.ref_normaliser[:, None]), out=ref_logits)
    found = log_gap.sub_(gap.kl[:, None]).mul_(log_p.exp_()).mul_((grad / shape.temperature)[:, None])
    return _into(product, found if slope is None else found.mul_(slope))


def _into(product: Tensor, found: Tensor) -> Tensor:
    """In the product's format, and in its place where that differs from the one it was computed in."""
    return found if found.dtype == product.dtype else product.copy_(found)


@functools.cache
def fused(function: Callable) -> Callable:
    """The function, compiled once for every number of rows."""
    return torch.compile(function, dynamic=True)


@dataclass(frozen=True)
class TorchKernel:
    """`compiled` lets torch.compile fuse what is done to a chunk."""

    compiled: bool = False

    def _of(self, function: Callable) -> Callable:
        return fused(function) if self.compiled else function

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        return torch_entry_bytes(dtype.itemsize, with_entropy)

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        own = product.clone() if keep and product.dtype == statistics_dtype(product.dtype) else product
        return self._of(measure_logits)(own, tokens, shape, with_entropy)

    def differentiate(
        self,
        product: Tensor,
        tokens: Tensor,
        shape: Sharpness,
        measured: Measured,
        grad: Tensor,
        grad_entropy: Tensor | None,
    ) -> Tensor:
        return self._of(logit_gradient)(product, tokens, shape, measured, grad, grad_entropy)

    def measure_gap(self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap:
        return self._of(measure_gap)(product, ref_product, shape, ref_shape)

    def differentiate_gap(
        self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
    ) -> Tensor:
        return self._of(gap_gradient)(product, ref_product, shape, ref_shape, gap, grad)


TORCH = TorchKernel()
