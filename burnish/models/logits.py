"""Operations on one chunk of logits in torch: statistics of its rows, and gradients written in place.

A chunk is the product hidden @ weight.T of a few rows, in the dtype of that product. A LogitKernel owns the chunk and
may overwrite it. kernels/head.py implements the same in Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.models.chunks import product
from burnish.sizing import torch_entry_bytes


class Sharpness(NamedTuple):
    """How a product becomes logits: tanh soft cap (optional), then division by the temperature."""

    temperature: float = 1.0
    softcap: float | None = None


class Measured(NamedTuple):
    """Per row: log-sum-exp, log-prob of its token, and entropy if requested."""

    normalizer: Tensor
    log_probs: Tensor
    entropy: Tensor | None


class Gap(NamedTuple):
    """Per row: the log-sum-exp of both models, and KL(first || second)."""

    normalizer: Tensor
    ref_normalizer: Tensor
    kl: Tensor


class LogitKernel(Protocol):
    """Operations on chunks of logits."""

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        """Peak bytes per entry of a chunk."""
        ...

    def product(self, hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
        """A chunk: hidden @ weight.T, written to the first rows of the buffer."""
        ...

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        """Statistics of each row. With `keep`, the product must not be overwritten."""
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
        """Gradient of the product, in its dtype, given the gradients of log-prob and entropy."""
        ...

    def measure_gap(self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap: ...

    def differentiate_gap(
        self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
    ) -> Tensor:
        """Gradient of the first product, given the gradient of the KL."""
        ...


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """dtype of row statistics: float32, or float64 if the product is float64."""
    return torch.promote_types(dtype, torch.float32)


def logits_of(product: Tensor, shape: Sharpness) -> Tensor:
    """Soft cap and temperature, in the dtype of statistics; in place if the product already has that dtype."""
    logits = product.to(statistics_dtype(product.dtype))
    if shape.softcap is not None:
        logits.div_(shape.softcap).tanh_().mul_(shape.softcap)
    return logits.div_(shape.temperature) if shape.temperature != 1.0 else logits


def measure_logits(product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool) -> Measured:
    """Overwrites the product."""
    logits = logits_of(product, shape)
    at_token = logits.gather(-1, tokens[:, None]).squeeze(-1)
    largest = logits.amax(-1)
    logits.sub_(largest[:, None])
    weights = logits.exp() if with_entropy else logits.exp_()
    total = weights.sum(-1)
    normalizer = largest + total.log()
    entropy = total.log() - weights.mul_(logits).sum(-1) / total if with_entropy else None
    return Measured(normalizer, at_token - normalizer, entropy)


def logit_gradient(
    product: Tensor,
    tokens: Tensor,
    shape: Sharpness,
    measured: Measured,
    grad: Tensor,
    grad_entropy: Tensor | None,
) -> Tensor:
    """dlogp/dz = 1[token] - p and dH/dz = -p (log p + H), through temperature and cap. Overwrites the product."""
    logits = logits_of(product, shape)
    slope = cap_slope(logits, shape)
    log_p = logits.sub_(measured.normalizer[:, None])
    grad = (grad / shape.temperature)[:, None]
    if grad_entropy is None:
        result = log_p.exp_().mul_(-grad)
    else:
        assert measured.entropy is not None
        p = log_p.exp()
        result = log_p.add_(measured.entropy[:, None]).mul_((grad_entropy / shape.temperature)[:, None])
        result.add_(grad).mul_(p).neg_()
    result.scatter_add_(-1, tokens[:, None], grad)
    return _into(product, result if slope is None else result.mul_(slope))


def cap_slope(logits: Tensor, shape: Sharpness) -> Tensor | None:
    """d(capped) / d(product) = 1 - (capped / cap)^2."""
    if shape.softcap is None:
        return None
    return (logits * (shape.temperature / shape.softcap)).square_().neg_().add_(1)


def measure_gap(product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap:
    """Overwrites both products."""
    logits, ref_logits = logits_of(product, shape), logits_of(ref_product, ref_shape)
    normalizer, ref_normalizer = logits.logsumexp(-1), ref_logits.logsumexp(-1)
    logits.sub_(normalizer[:, None])
    log_gap = torch.sub(logits, ref_logits.sub_(ref_normalizer[:, None]), out=ref_logits)
    return Gap(normalizer, ref_normalizer, logits.exp_().mul_(log_gap).sum(-1))


def gap_gradient(
    product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
) -> Tensor:
    """dKL/dz = p (log p - log q - KL), through temperature and cap. Overwrites both products."""
    logits, ref_logits = logits_of(product, shape), logits_of(ref_product, ref_shape)
    slope = cap_slope(logits, shape)
    log_p = logits.sub_(gap.normalizer[:, None])
    log_gap = torch.sub(log_p, ref_logits.sub_(gap.ref_normalizer[:, None]), out=ref_logits)
    result = log_gap.sub_(gap.kl[:, None]).mul_(log_p.exp_()).mul_((grad / shape.temperature)[:, None])
    return _into(product, result if slope is None else result.mul_(slope))


def _into(product: Tensor, result: Tensor) -> Tensor:
    """The result in the dtype of the product, copied into the product if the dtypes differ."""
    return result if result.dtype == product.dtype else product.copy_(result)


@functools.cache
def fused(function: Callable) -> Callable:
    """The function compiled by torch.compile, once for any number of rows."""
    return torch.compile(function, dynamic=True)


@dataclass(frozen=True)
class TorchKernel:
    """LogitKernel in torch; with `compiled`, fused by torch.compile."""

    compiled: bool = False

    def _of(self, function: Callable) -> Callable:
        return fused(function) if self.compiled else function

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        return torch_entry_bytes(dtype.itemsize, with_entropy)

    def product(self, hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
        return product(hidden, weight, buffer)

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        scratch = product.clone() if keep and product.dtype == statistics_dtype(product.dtype) else product
        return self._of(measure_logits)(scratch, tokens, shape, with_entropy)

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
