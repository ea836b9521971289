"""The head: hidden states -> log-prob of given tokens and entropy, a chunk of rows at a time, never the full logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Rows x vocabulary of one chunk: 16 M entries are 64 MiB of float32.
CHUNK_ENTRIES = 1 << 24


def token_log_probs(
    hidden: Tensor,  # [T, hidden]
    weight: Tensor,  # [vocabulary, hidden]
    tokens: Tensor,  # [T]
    temperature: float = 1.0,
    with_entropy: bool = False,
    softcap: float | None = None,
    *,
    compiled: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at `tokens`, and the entropy of that distribution; float32 [T].

    `compiled` lets torch.compile fuse what is done to a chunk's logits.
    """
    log_probs, entropy = _ChunkedHead.apply(hidden, weight, tokens, temperature, with_entropy, softcap, compiled)
    return log_probs, entropy if with_entropy else None


def chunk_logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    """float32 logits of a few rows, capped and divided by the temperature."""
    logits = (hidden @ weight.t()).float()
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits / temperature if temperature != 1.0 else logits


def measure_logits(logits: Tensor, tokens: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-sum-exp, log-prob of the tokens and entropy of each row."""
    normaliser = torch.logsumexp(logits, -1)
    log_probs = logits.gather(-1, tokens[:, None]).squeeze(-1) - normaliser
    if not with_entropy:
        return normaliser, log_probs, None
    mean_logit = (torch.exp(logits - normaliser[:, None]) * logits).sum(-1)
    return normaliser, log_probs, normaliser - mean_logit


def logit_gradient(
    logits: Tensor, tokens: Tensor, normaliser: Tensor, entropy: Tensor, grad: Tensor, grad_entropy: Tensor | None
) -> Tensor:
    """What the rows' gradients of log-prob and entropy mean for their logits."""
    log_p = logits - normaliser[:, None]
    p = torch.exp(log_p)
    found = -p * grad[:, None]
    found.scatter_add_(-1, tokens[:, None], grad[:, None])
    if grad_entropy is not None:  # dH/dz = -p (log p + H)
        found -= p * (log_p + entropy[:, None]) * grad_entropy[:, None]
    return found


@functools.cache
def fused(function: Callable) -> Callable:
    """The function, compiled once for every number of rows."""
    return torch.compile(function, dynamic=True)


class _ChunkedHead(torch.autograd.Function):
    """Keeps hidden states and weights for the backward pass, and makes each chunk's logits again there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: Tensor,
        temperature: float,
        with_entropy: bool,
        softcap: float | None,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        measure = fused(measure_logits) if compiled else measure_logits
        rows = max(1, CHUNK_ENTRIES // weight.shape[0])
        log_probs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
        entropy = torch.zeros_like(log_probs)
        normaliser = torch.empty_like(log_probs)
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            logits = chunk_logits(hidden[part], weight, temperature, softcap)
            normaliser[part], log_probs[part], found = measure(logits, tokens[part], with_entropy)
            if with_entropy:
                entropy[part] = found
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in the backward pass
        ctx.save_for_backward(hidden, weight, tokens, normaliser, entropy)
        ctx.options = (temperature, softcap, rows, compiled)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple:
        hidden, weight, tokens, normaliser, entropy = ctx.saved_tensors
        temperature, softcap, rows, compiled = ctx.options
        gradient = fused(logit_gradient) if compiled else logit_gradient
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(normaliser)
        grad_hidden = torch.empty_like(hidden)
        # A frozen head, as under LoRA, needs none.
        taught = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if taught else None
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            logits = chunk_logits(hidden[part], weight, temperature, softcap)
            part_entropy = None if grad_entropy is None else grad_entropy[part]
            grad = gradient(logits, tokens[part], normaliser[part], entropy[part], grad_log_probs[part], part_entropy)
            if softcap is not None:  # d tanh: 1 - (capped / cap)^2
                grad *= 1 - (logits * temperature / softcap) ** 2
            grad = (grad / temperature).to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            if taught:
                grad_weight += (grad.t() @ hidden[part]).float()
        return grad_hidden, grad_weight.to(weight.dtype) if taught else None, None, None, None, None, None
