"""The head: hidden states -> log-prob of given tokens and entropy, a chunk of rows at a time, never the full logits."""

from __future__ import annotations

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
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at `tokens`, and the entropy of that distribution; float32 [T]."""
    log_probs, entropy = _ChunkedHead.apply(hidden, weight, tokens, temperature, with_entropy, softcap)
    return log_probs, entropy if with_entropy else None


def chunk_logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    """float32 logits of a few rows, capped and divided by the temperature."""
    logits = (hidden @ weight.t()).float()
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits / temperature if temperature != 1.0 else logits


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
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, CHUNK_ENTRIES // weight.shape[0])
        log_probs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
        entropy = torch.zeros_like(log_probs)
        normaliser = torch.empty_like(log_probs)
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            logits = chunk_logits(hidden[part], weight, temperature, softcap)
            normaliser[part] = torch.logsumexp(logits, -1)
            log_probs[part] = logits.gather(-1, tokens[part, None]).squeeze(-1) - normaliser[part]
            if with_entropy:
                mean_logit = (torch.exp(logits - normaliser[part, None]) * logits).sum(-1)
                entropy[part] = normaliser[part] - mean_logit
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in the backward pass
        ctx.save_for_backward(hidden, weight, tokens, normaliser, entropy)
        ctx.options = (temperature, softcap, rows)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple:
        hidden, weight, tokens, normaliser, entropy = ctx.saved_tensors
        temperature, softcap, rows = ctx.options
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(normaliser)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            logits = chunk_logits(hidden[part], weight, temperature, softcap)
            log_p = logits - normaliser[part, None]
            p = torch.exp(log_p)
            grad = -p * grad_log_probs[part, None]
            grad.scatter_add_(-1, tokens[part, None], grad_log_probs[part, None])
            if grad_entropy is not None:  # dH/dz = -p (log p + H)
                grad -= p * (log_p + entropy[part, None]) * grad_entropy[part, None]
            if softcap is not None:  # d tanh: 1 - (capped / cap)^2
                grad *= 1 - (logits * temperature / softcap) ** 2
            grad = (grad / temperature).to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            grad_weight += (grad.t() @ hidden[part]).float()
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None
