"""The head: hidden states -> log-prob of given tokens and entropy, a chunk of rows at a time, never the full logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.models.chunks import Chunks, add_product, product, sum_space
from burnish.models.logits import TORCH, LogitKernel, Measured, Sharpness, logits_of, statistics_dtype


def token_log_probs(
    hidden: Tensor,  # [T, hidden]
    weight: Tensor,  # [vocabulary, hidden], of any format: products are computed in that of `hidden`
    tokens: Tensor,  # [T]
    temperature: float = 1.0,
    with_entropy: bool = False,
    softcap: float | None = None,
    *,
    kernel: LogitKernel = TORCH,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at `tokens`, and the entropy of that distribution; float32 [T]."""
    # A frozen head, as under LoRA: what a token's log-prob does to its hidden state is known but for a factor.
    ahead = torch.is_grad_enabled() and hidden.requires_grad and not weight.requires_grad
    shape = Sharpness(temperature, softcap)
    log_probs, entropy = _ChunkedHead.apply(hidden, weight, tokens, shape, with_entropy, kernel, ahead)
    return log_probs, entropy if with_entropy else None


def chunk_logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    """float32 logits of a few rows, capped and divided by the temperature."""
    return logits_of(hidden @ weight.to(hidden.dtype).t(), Sharpness(temperature, softcap))


class _ChunkedHead(torch.autograd.Function):
    """Keeps hidden states and weights for the backward pass, and makes each chunk's logits again there.

    Where the head is frozen, the forward pass keeps d log-prob / d hidden instead: one product less.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: Tensor,
        shape: Sharpness,
        with_entropy: bool,
        kernel: LogitKernel,
        ahead: bool,
    ) -> tuple[Tensor, Tensor]:
        computed = weight.to(hidden.dtype)
        chunks = Chunks.of(len(tokens), len(weight), kernel.entry_bytes(hidden.dtype, with_entropy), hidden.device)
        space = chunks.space(hidden, len(weight))
        log_probs = torch.empty(len(tokens), dtype=statistics_dtype(hidden.dtype), device=hidden.device)
        entropy, normaliser = torch.zeros_like(log_probs), torch.empty_like(log_probs)
        slope = torch.empty_like(hidden) if ahead else None
        for part in chunks.parts():
            logits = product(hidden[part], computed, space)
            found = kernel.measure(logits, tokens[part], shape, with_entropy, keep=ahead)
            normaliser[part], log_probs[part] = found.normaliser, found.log_probs
            if with_entropy:
                entropy[part] = found.entropy
            if ahead:
                grad = kernel.differentiate(logits, tokens[part], shape, found, torch.ones_like(found.log_probs), None)
                torch.mm(grad, computed, out=slope[part])
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in the backward pass
        kept = hidden if with_entropy or not ahead else None
        ctx.save_for_backward(kept, weight, tokens, normaliser, entropy, slope)
        ctx.options = (shape, kernel)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple:
        hidden, weight, tokens, normaliser, entropy, slope = ctx.saved_tensors
        shape, kernel = ctx.options
        nothing = (None,) * 5
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(normaliser)
        if slope is not None and grad_entropy is None:
            return (slope * grad_log_probs[:, None].to(slope.dtype), None, *nothing)
        measured = Measured(normaliser, normaliser, entropy)
        taught = ctx.needs_input_grad[1]
        grad_hidden, total = _gradients(
            hidden, weight, tokens, shape, kernel, measured, grad_log_probs, grad_entropy, taught
        )
        return (grad_hidden, total.to(weight.dtype) if taught else None, *nothing)


def _gradients(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    shape: Sharpness,
    kernel: LogitKernel,
    measured: Measured,
    grad_log_probs: Tensor,
    grad_entropy: Tensor | None,
    taught: bool,
) -> tuple[Tensor, Tensor | None]:
    """Of hidden states, and, where they are taught, of the weights in at least float32."""
    computed = weight.to(hidden.dtype)
    entry_bytes = kernel.entry_bytes(hidden.dtype, grad_entropy is not None)
    chunks = Chunks.of(len(tokens), len(weight), entry_bytes, hidden.device)
    space = chunks.space(hidden, len(weight))
    grad_hidden = torch.empty_like(hidden)
    grad_weight = sum_space(weight) if taught else None
    for part in chunks.parts():
        rows = Measured(measured.normaliser[part], measured.log_probs[part], measured.entropy[part])
        part_entropy = None if grad_entropy is None else grad_entropy[part]
        logits = product(hidden[part], computed, space)
        grad = kernel.differentiate(logits, tokens[part], shape, rows, grad_log_probs[part], part_entropy)
        torch.mm(grad, computed, out=grad_hidden[part])
        if taught:
            add_product(grad_weight, grad, hidden[part])
    return grad_hidden, grad_weight
