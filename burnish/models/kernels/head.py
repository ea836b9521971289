"""LogitKernel in Triton: one pass over a chunk of logits for statistics, one for gradients in place.

Matrix products stay with cuBLAS; these kernels are memory-bound: a chunk is read once, or read and written once. A row
is reduced block by block with a running maximum (online softmax), so no second pass is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.models.chunks import product
from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.logits import Gap, Measured, Sharpness, statistics_dtype
from burnish.sizing import triton_entry_bytes

BLOCK = 4096  # entries of a row per iteration or program
WARPS = 8


@kernel
def sharpened(raw: tl.tensor, scale: float, cap: float, CAPPED: tl.constexpr) -> tl.tensor:
    """Logit of a product: soft cap and temperature; tanh(x) = 2 sigmoid(2 x) - 1."""
    if CAPPED:
        raw = (2 * tl.sigmoid(2 * raw / cap) - 1) * cap
    return raw * scale


@kernel
def measure_rows(
    product: tl.tensor,  # [rows, vocabulary]
    tokens: tl.tensor,  # [rows], as are all below
    normalizer: tl.tensor,
    log_prob: tl.tensor,
    entropy: tl.tensor,
    scale: float,
    cap: float,
    CAPPED: tl.constexpr,
    ENTROPY: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row per program."""
    wide = normalizer.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = product + row * VOCABULARY
    largest = tl.full([], -1e30, wide)  # below every logit, but finite, because -inf - -inf is NaN
    total = tl.zeros([], wide)  # of exp(logit - largest)
    spread = tl.zeros([], wide)  # of exp(logit - largest) (logit - largest)
    for first in range(0, VOCABULARY, BLOCK):
        place = first + tl.arange(0, BLOCK)
        inside = place < VOCABULARY
        logit = sharpened(tl.load(start + place, mask=inside, other=0).to(wide), scale, cap, CAPPED)
        logit = tl.where(inside, logit, -1e30)
        new = tl.maximum(largest, tl.max(logit, 0))
        below = logit - new
        weight = tl.where(inside, tl.exp(below), 0)
        kept = tl.exp(largest - new)
        if ENTROPY:
            spread = kept * (spread + total * (largest - new)) + tl.sum(weight * below, 0)
        total = kept * total + tl.sum(weight, 0)
        largest = new
    lse = largest + tl.log(total)
    token = tl.load(tokens + row)
    tl.store(normalizer + row, lse)
    tl.store(log_prob + row, sharpened(tl.load(start + token).to(wide), scale, cap, CAPPED) - lse)
    if ENTROPY:
        tl.store(entropy + row, tl.log(total) - spread / total)


@kernel
def differentiate_blocks(
    product: tl.tensor,  # [rows, vocabulary]; gets the gradient
    tokens: tl.tensor,
    normalizer: tl.tensor,
    entropy: tl.tensor,
    grad: tl.tensor,
    grad_entropy: tl.tensor,
    scale: float,
    cap: float,
    CAPPED: tl.constexpr,
    ENTROPY: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One block of a row per program."""
    wide = normalizer.dtype.element_ty
    blocks: tl.constexpr = (VOCABULARY + BLOCK - 1) // BLOCK  # of a row
    row = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = place < VOCABULARY
    at = product + row * VOCABULARY + place
    logit = sharpened(tl.load(at, mask=inside, other=0).to(wide), scale, cap, CAPPED)
    log_p = logit - tl.load(normalizer + row)
    row_grad = tl.load(grad + row)
    total_grad = tl.zeros_like(log_p) + row_grad
    if ENTROPY:
        total_grad += tl.load(grad_entropy + row) * (log_p + tl.load(entropy + row))
    result = tl.where(place == tl.load(tokens + row), row_grad, 0) - tl.exp(log_p) * total_grad
    if CAPPED:
        capped = logit / (cap * scale)
        result *= 1 - capped * capped
    tl.store(at, (result * scale).to(product.dtype.element_ty), mask=inside)


@kernel
def measure_gap_rows(
    product: tl.tensor,  # [rows, vocabulary]
    ref_product: tl.tensor,
    normalizer: tl.tensor,
    ref_normalizer: tl.tensor,
    kl: tl.tensor,
    scale: float,
    cap: float,
    ref_cap: float,
    CAPPED: tl.constexpr,
    REF_CAPPED: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row of both models per program: KL = sum_v p_v (z_v - y_v) - log-sum-exp z + log-sum-exp y."""
    wide = normalizer.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * VOCABULARY
    largest, ref_largest = tl.full([], -1e30, wide), tl.full([], -1e30, wide)
    total, ref_total, difference = tl.zeros([], wide), tl.zeros([], wide), tl.zeros([], wide)
    for first in range(0, VOCABULARY, BLOCK):
        place = first + tl.arange(0, BLOCK)
        inside = place < VOCABULARY
        logit = tl.load(product + start + place, mask=inside, other=0).to(wide)
        ref_logit = tl.load(ref_product + start + place, mask=inside, other=0).to(wide)
        logit = tl.where(inside, sharpened(logit, scale, cap, CAPPED), -1e30)
        ref_logit = tl.where(inside, sharpened(ref_logit, scale, ref_cap, REF_CAPPED), -1e30)
        new, ref_new = tl.maximum(largest, tl.max(logit, 0)), tl.maximum(ref_largest, tl.max(ref_logit, 0))
        weight = tl.where(inside, tl.exp(logit - new), 0)
        kept = tl.exp(largest - new)
        difference = kept * difference + tl.sum(weight * (logit - ref_logit), 0)
        total = kept * total + tl.sum(weight, 0)
        ref_weight = tl.where(inside, tl.exp(ref_logit - ref_new), 0)
        ref_total = tl.exp(ref_largest - ref_new) * ref_total + tl.sum(ref_weight, 0)
        largest, ref_largest = new, ref_new
    lse, ref_lse = largest + tl.log(total), ref_largest + tl.log(ref_total)
    tl.store(normalizer + row, lse)
    tl.store(ref_normalizer + row, ref_lse)
    tl.store(kl + row, difference / total - lse + ref_lse)


@kernel
def differentiate_gap_blocks(
    product: tl.tensor,  # [rows, vocabulary]; gets the gradient
    ref_product: tl.tensor,
    normalizer: tl.tensor,
    ref_normalizer: tl.tensor,
    kl: tl.tensor,
    grad: tl.tensor,
    scale: float,
    cap: float,
    ref_cap: float,
    CAPPED: tl.constexpr,
    REF_CAPPED: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One block of a row per program."""
    wide = normalizer.dtype.element_ty
    blocks: tl.constexpr = (VOCABULARY + BLOCK - 1) // BLOCK  # of a row
    row = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = place < VOCABULARY
    at = row * VOCABULARY + place
    logit = sharpened(tl.load(product + at, mask=inside, other=0).to(wide), scale, cap, CAPPED)
    ref_logit = sharpened(tl.load(ref_product + at, mask=inside, other=0).to(wide), scale, ref_cap, REF_CAPPED)
    log_p, log_q = logit - tl.load(normalizer + row), ref_logit - tl.load(ref_normalizer + row)
    result = tl.exp(log_p) * (log_p - log_q - tl.load(kl + row)) * tl.load(grad + row)
    if CAPPED:
        capped = logit / (cap * scale)
        result *= 1 - capped * capped
    tl.store(product + at, (result * scale).to(product.dtype.element_ty), mask=inside)


class TritonKernel:
    """LogitKernel backed by the kernels above."""

    def entry_bytes(self, dtype: torch.dtype, with_entropy: bool) -> int:
        return triton_entry_bytes(dtype.itemsize, with_entropy)

    def product(self, hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
        return product(hidden, weight, buffer)

    def measure(self, product: Tensor, tokens: Tensor, shape: Sharpness, with_entropy: bool, keep: bool) -> Measured:
        columns = [_column(product) for _ in range(3)]
        measure_rows[(len(product),)](product, tokens, *columns, *_numbers(shape), with_entropy, **_sizes(product))
        return Measured(columns[0], columns[1], columns[2] if with_entropy else None)

    def differentiate(
        self,
        product: Tensor,
        tokens: Tensor,
        shape: Sharpness,
        measured: Measured,
        grad: Tensor,
        grad_entropy: Tensor | None,
    ) -> Tensor:
        grad = grad.contiguous()
        # Without a gradient of the entropy, the kernel reads neither of the two.
        entropies = (grad, grad) if grad_entropy is None else (measured.entropy, grad_entropy.contiguous())
        differentiate_blocks[_blocks(product)](
            product,
            tokens,
            measured.normalizer,
            entropies[0],
            grad,
            entropies[1],
            *_numbers(shape),
            grad_entropy is not None,
            **_sizes(product),
        )
        return product

    def measure_gap(self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness) -> Gap:
        gap = Gap(*(_column(product) for _ in range(3)))
        measure_gap_rows[(len(product),)](
            product, ref_product, *gap, *_both_numbers(shape, ref_shape), **_sizes(product)
        )
        return gap

    def differentiate_gap(
        self, product: Tensor, ref_product: Tensor, shape: Sharpness, ref_shape: Sharpness, gap: Gap, grad: Tensor
    ) -> Tensor:
        numbers = _both_numbers(shape, ref_shape)
        differentiate_gap_blocks[_blocks(product)](
            product, ref_product, *gap, grad.contiguous(), *numbers, **_sizes(product)
        )
        return product


def _column(product: Tensor) -> Tensor:
    return torch.empty(len(product), dtype=statistics_dtype(product.dtype), device=product.device)


def _numbers(shape: Sharpness) -> tuple[float, float, bool]:
    """Scale, cap and whether there is a cap: arguments of the kernels."""
    return 1.0 / shape.temperature, shape.softcap or 1.0, shape.softcap is not None


def _both_numbers(shape: Sharpness, ref_shape: Sharpness) -> tuple[float, float, float, bool, bool]:
    """The same for two models at one temperature."""
    (scale, cap, capped), (_, ref_cap, ref_capped) = _numbers(shape), _numbers(ref_shape)
    return scale, cap, ref_cap, capped, ref_capped


def _sizes(product: Tensor) -> dict[str, int]:
    return {"VOCABULARY": product.shape[1], "BLOCK": BLOCK, "num_warps": WARPS}


def _blocks(product: Tensor) -> tuple[int]:
    """The grid over all blocks of all rows."""
    return (len(product) * -(-product.shape[1] // BLOCK),)
