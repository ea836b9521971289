"""Exact KL between two language models at each position, computed in chunks without materializing all logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.chunks import Chunks, add_product, gradient_accumulator, product
from burnish.models.logits import TORCH, Gap, LogitKernel, Sharpness, statistics_dtype
from burnish.models.sequence.places import ALL_HERE, Places


class HeadInput(NamedTuple):
    """Inputs of a head; `balance` is the routers' load-balancing loss if requested.

    With sequence parallelism, the hidden states are those of this rank's `places`.
    """

    hidden: Tensor  # [T, hidden]
    weight: Tensor  # [vocabulary, hidden]
    softcap: float | None = None
    balance: Tensor | None = None
    places: Places = ALL_HERE


def exact_kl(
    policy: HeadInput, reference: HeadInput, temperature: float = 1.0, *, kernel: LogitKernel = TORCH
) -> Tensor:
    """sum_v p_v (log p_v - log q_v) of the two softmaxes at this temperature; float32 [T].

    Only the policy gets gradients. The models may differ in hidden size, but not in vocabulary.
    """
    if policy.weight.shape[0] != reference.weight.shape[0]:
        raise ValueError(f"different vocabulary sizes: {policy.weight.shape[0]} and {reference.weight.shape[0]}")
    shapes = (Sharpness(temperature, policy.softcap), Sharpness(temperature, reference.softcap))
    kl = _ChunkedKL.apply(policy.hidden, policy.weight, reference.hidden, reference.weight, shapes, kernel)
    return policy.places.whole(kl)


class _ChunkedKL(torch.autograd.Function):
    """Saves hidden states and weights; the backward pass recomputes each chunk's logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ref_hidden: Tensor,
        ref_weight: Tensor,
        shapes: tuple[Sharpness, Sharpness],
        kernel: LogitKernel,
    ) -> Tensor:
        statistics = [
            torch.empty(len(hidden), dtype=statistics_dtype(hidden.dtype), device=hidden.device) for _ in Gap._fields
        ]
        for part, logits, ref_logits in _products(hidden, weight, ref_hidden, ref_weight, kernel):
            for whole, rows in zip(statistics, kernel.measure_gap(logits, ref_logits, *shapes), strict=True):
                whole[part] = rows
        ctx.save_for_backward(hidden, weight, ref_hidden, ref_weight, *statistics)
        ctx.options = (shapes, kernel)
        return statistics[-1]

    @staticmethod
    def backward(ctx: Any, grad_kl: Tensor) -> tuple:
        hidden, weight, ref_hidden, ref_weight, *statistics = ctx.saved_tensors
        shapes, kernel = ctx.options
        weight_grad = ctx.needs_input_grad[1]
        computed = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = gradient_accumulator(weight) if weight_grad else None
        for part, logits, ref_logits in _products(hidden, weight, ref_hidden, ref_weight, kernel):
            gap = Gap(*(whole[part] for whole in statistics))
            grad = kernel.differentiate_gap(logits, ref_logits, *shapes, gap, grad_kl[part])
            torch.mm(grad, computed, out=grad_hidden[part])
            if grad_weight is not None:
                add_product(grad_weight, grad, hidden[part])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def _products(hidden: Tensor, weight: Tensor, ref_hidden: Tensor, ref_weight: Tensor, kernel: LogitKernel) -> Any:
    """(rows, policy's product, reference's product) of each chunk."""
    weight, ref_weight = weight.to(hidden.dtype), ref_weight.to(ref_hidden.dtype)
    # Two models' logits are alive at once.
    chunks = Chunks.of(len(hidden), len(weight), 2 * kernel.entry_bytes(hidden.dtype, False), hidden.device)
    buffer, ref_buffer = chunks.buffer(hidden, len(weight)), chunks.buffer(ref_hidden, len(weight))
    for part in chunks.parts():
        yield part, product(hidden[part], weight, buffer), product(ref_hidden[part], ref_weight, ref_buffer)
