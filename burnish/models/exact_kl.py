"""The exact KL between two language models at each position, a chunk of rows at a time, never the full logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models import logprobs
from burnish.models.logprobs import chunk_logits


class HeadInput(NamedTuple):
    """What a head makes logits of; `balance` is the routers' load-balancing loss where it was asked for."""

    hidden: Tensor  # [T, hidden]
    weight: Tensor  # [vocabulary, hidden]
    softcap: float | None = None
    balance: Tensor | None = None


def exact_kl(policy: HeadInput, reference: HeadInput, temperature: float = 1.0) -> Tensor:
    """sum_v p_v (log p_v - log q_v) of the two softmaxes at this temperature; float32 [T]. Only the policy is taught.

    The two may differ in width, not in vocabulary.
    """
    if policy.weight.shape[0] != reference.weight.shape[0]:
        raise ValueError(f"vocabularies of {policy.weight.shape[0]} and {reference.weight.shape[0]} have no KL")
    options = (temperature, policy.softcap, reference.softcap)
    return _ChunkedKL.apply(policy.hidden, policy.weight, reference.hidden, reference.weight, options)


class _ChunkedKL(torch.autograd.Function):
    """Keeps hidden states and weights for the backward pass, and makes each chunk's logits again there."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ref_hidden: Tensor, ref_weight: Tensor, options: tuple
    ) -> Tensor:
        kl = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        for part in _chunks(hidden, weight):
            log_p, gap = _log_probs(hidden[part], weight, ref_hidden[part], ref_weight, options)
            kl[part] = (log_p.exp() * gap).sum(-1)
        ctx.save_for_backward(hidden, weight, ref_hidden, ref_weight, kl)
        ctx.options = options
        return kl

    @staticmethod
    def backward(ctx: Any, grad_kl: Tensor) -> tuple:
        hidden, weight, ref_hidden, ref_weight, kl = ctx.saved_tensors
        temperature, softcap, _ = ctx.options
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for part in _chunks(hidden, weight):
            log_p, gap = _log_probs(hidden[part], weight, ref_hidden[part], ref_weight, ctx.options)
            grad = log_p.exp() * (gap - kl[part, None]) * grad_kl[part, None]  # dKL/dz = p (log p - log q - KL)
            if softcap is not None:  # d tanh: 1 - (capped / cap)^2
                capped = chunk_logits(hidden[part], weight, 1.0, softcap)
                grad *= 1 - (capped / softcap) ** 2
            grad = (grad / temperature).to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            grad_weight += (grad.t() @ hidden[part]).float()
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    # Two models' logits are alive at once, so each has half the rows.
    rows = max(1, logprobs.CHUNK_ENTRIES // (2 * weight.shape[0]))
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


def _log_probs(
    hidden: Tensor, weight: Tensor, ref_hidden: Tensor, ref_weight: Tensor, options: tuple
) -> tuple[Tensor, Tensor]:
    """log p, and log p - log q, of a few rows."""
    temperature, softcap, ref_softcap = options
    log_p = chunk_logits(hidden, weight, temperature, softcap).log_softmax(-1)
    log_q = chunk_logits(ref_hidden, ref_weight, temperature, ref_softcap).log_softmax(-1)
    return log_p, log_p - log_q
