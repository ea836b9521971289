"""The language-model head in training, with the log-probs that the engine reports for its samples, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.models.kernels import invariant as kernels
from burnish.models.kernels.sample import log_probs_of
from burnish.models.logits import Gap, LogitKernel, Measured, Sharpness, statistics_dtype


@dataclass(frozen=True)
class InvariantHead:
    """Logits and log-probs by the engine's kernels; entropy, KL and gradients by another LogitKernel."""

    base: LogitKernel

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        return self.base.entry_bytes(dtype, with_entropy)

    def product(self, hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
        return kernels.product(hidden.contiguous(), [weight], [None], out=buffer[: len(hidden)])

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        temperature = torch.full((len(product),), shape.temperature, dtype=torch.float32, device=product.device)
        log_probs, normalizer = log_probs_of(product, temperature, tokens, shape.softcap)
        entropy = self.base.measure(product, tokens, shape, True, keep).entropy if with_entropy else None
        wide = statistics_dtype(product.dtype)
        return Measured(normalizer.to(wide), log_probs.to(wide), entropy)

    def differentiate(
        self,
        product: Tensor,
        tokens: Tensor,
        shape: Sharpness,
        measured: Measured,
        grad: Tensor,
        grad_entropy: Tensor | None,
    ) -> Tensor:
        return self.base.differentiate(product, tokens, shape, measured, grad, grad_entropy)

    def measure_gap(self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap:
        return self.base.measure_gap(product, ref_product, shape, ref_shape)

    def differentiate_gap(
        self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
    ) -> Tensor:
        return self.base.differentiate_gap(product, ref_product, shape, ref_shape, gap, grad)
