"""The language-model head: hidden states -> log-probs of given tokens and entropy, in chunks without all logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.models.chunks import Chunks, add_product, gradient_accumulator
from burnish.models.logits import TORCH, LogitKernel, Measured, Sharpness, logits_of, statistics_dtype


def token_log_probs(
    hidden: Tensor,  # [T, hidden]
    weight: Tensor,  # [vocabulary, hidden], of any dtype: the product is computed in that of `hidden`
    tokens: Tensor,  # [T]
    temperature: float = 1.0,
    with_entropy: bool = False,
    softcap: float | None = None,
    *,
    kernel: LogitKernel = TORCH,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at `tokens`, and the entropy of that distribution; float32 [T]."""
    # With a frozen head (LoRA), the forward pass knows the gradient of the hidden states up to a factor per token.
    precompute_grad = torch.is_grad_enabled() and hidden.requires_grad and not weight.requires_grad
    shape = Sharpness(temperature, softcap)
    log_probs, entropy = _ChunkedHead.apply(hidden, weight, tokens, shape, with_entropy, kernel, precompute_grad)
    return log_probs, entropy if with_entropy else None


def chunk_logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    """float32 logits of a few rows, capped and divided by the temperature."""
    return logits_of(hidden @ weight.to(hidden.dtype).t(), Sharpness(temperature, softcap))


class _ChunkedHead(torch.autograd.Function):
    """Saves hidden states and weights; the backward pass recomputes each chunk's logits.

    If the head is frozen, the forward pass saves d log-prob / d hidden instead, which saves one matrix product.
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
        precompute_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        computed = weight.to(hidden.dtype)
        chunks = Chunks.of(len(tokens), len(weight), kernel.entry_bytes(hidden.dtype, with_entropy), hidden.device)
        buffer = chunks.buffer(hidden, len(weight))
        log_probs = torch.empty(len(tokens), dtype=statistics_dtype(hidden.dtype), device=hidden.device)
        entropy, normalizer = torch.zeros_like(log_probs), torch.empty_like(log_probs)
        hidden_grad = torch.empty_like(hidden) if precompute_grad else None
        for part in chunks.parts():
            logits = kernel.product(hidden[part], computed, buffer)
            measured = kernel.measure(logits, tokens[part], shape, with_entropy, keep=precompute_grad)
            normalizer[part], log_probs[part] = measured.normalizer, measured.log_probs
            if with_entropy:
                assert measured.entropy is not None
                entropy[part] = measured.entropy
            if hidden_grad is not None:
                grad = kernel.differentiate(
                    logits, tokens[part], shape, measured, torch.ones_like(measured.log_probs), None
                )
                torch.mm(grad, computed, out=hidden_grad[part])
        ctx.set_materialize_grads(False)  # an entropy that is only reported gets no gradient
        kept = hidden if with_entropy or not precompute_grad else None
        ctx.save_for_backward(kept, weight, tokens, normalizer, entropy, hidden_grad)
        ctx.options = (shape, kernel)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple:
        hidden, weight, tokens, normalizer, entropy, hidden_grad = ctx.saved_tensors
        shape, kernel = ctx.options
        nothing = (None,) * 5
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(normalizer)
        if hidden_grad is not None and grad_entropy is None:
            return (hidden_grad * grad_log_probs[:, None].to(hidden_grad.dtype), None, *nothing)
        measured = Measured(normalizer, normalizer, entropy)
        weight_grad = ctx.needs_input_grad[1]
        grad_hidden, total = _gradients(
            hidden, weight, tokens, shape, kernel, measured, grad_log_probs, grad_entropy, weight_grad
        )
        return (grad_hidden, None if total is None else total.to(weight.dtype), *nothing)


def _gradients(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    shape: Sharpness,
    kernel: LogitKernel,
    measured: Measured,
    grad_log_probs: Tensor,
    grad_entropy: Tensor | None,
    weight_grad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the hidden states and, with `weight_grad`, of the weight in at least float32."""
    assert measured.entropy is not None
    computed = weight.to(hidden.dtype)
    entry_bytes = kernel.entry_bytes(hidden.dtype, grad_entropy is not None)
    chunks = Chunks.of(len(tokens), len(weight), entry_bytes, hidden.device)
    buffer = chunks.buffer(hidden, len(weight))
    grad_hidden = torch.empty_like(hidden)
    grad_weight = gradient_accumulator(weight) if weight_grad else None
    for part in chunks.parts():
        rows = Measured(measured.normalizer[part], measured.log_probs[part], measured.entropy[part])
        part_entropy = None if grad_entropy is None else grad_entropy[part]
        logits = kernel.product(hidden[part], computed, buffer)
        grad = kernel.differentiate(logits, tokens[part], shape, rows, grad_log_probs[part], part_entropy)
        torch.mm(grad, computed, out=grad_hidden[part])
        if grad_weight is not None:
            add_product(grad_weight, grad, hidden[part])
    return grad_hidden, grad_weight
