"""Choosing the next token with addressed noise: the same (seed, index) gives the same draw, whoever is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.rollout.engine import Sampling

UNIFORM_BITS = 23  # k / 2^23 times a float32 total stays below that total, so a draw never falls off the end


@dataclass(frozen=True)
class SamplingRows:
    """The sampling settings of the running rows as tensors [B]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: Tensor
    seed: Tensor
    any_greedy: bool
    any_restricted: bool

    @staticmethod
    def of(settings: Sequence[Sampling], seeds: Sequence[int], device: torch.device) -> SamplingRows:
        greedy = [s.greedy for s in settings]
        return SamplingRows(
            temperature=torch.tensor([1.0 if s.greedy else s.temperature for s in settings], device=device),
            top_k=torch.tensor([s.top_k for s in settings], device=device),
            top_p=torch.tensor([s.top_p for s in settings], device=device),
            greedy=torch.tensor(greedy, device=device),
            seed=torch.tensor(list(seeds), dtype=torch.int64, device=device),
            any_greedy=any(greedy),
            any_restricted=any(s.restricted for s in settings),
        )


def choose(logits: Tensor, rows: SamplingRows, index: Tensor) -> tuple[Tensor, Tensor]:
    """logits [B, V] -> tokens [B] and log-softmax(logits / temperature) at them; `index` is the token's place [B]."""
    log_probs = torch.log_softmax(logits.float() / rows.temperature[:, None], -1)
    kept = restrict(log_probs, rows.top_k, rows.top_p) if rows.any_restricted else log_probs
    cumulative = kept.exp().cumsum(-1)
    point = uniform(rows.seed, index)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, point, right=True).squeeze(-1)
    if rows.any_greedy:
        tokens = torch.where(rows.greedy, log_probs.argmax(-1), tokens)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def restrict(log_probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """-inf outside the top_k most likely tokens and outside the smallest set that holds top_p of the rest."""
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(log_probs.shape[-1], device=log_probs.device)
    limit = torch.where(top_k > 0, top_k, log_probs.shape[-1])[:, None]
    ordered = ordered.masked_fill(rank >= limit, float("-inf"))
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    # top_p = 1 restricts nothing, not even where the sum before a token rounds to 1: a row must not feel its neighbours
    outside = (before >= top_p[:, None]) & (top_p < 1)[:, None] & (rank > 0)
    ordered = ordered.masked_fill(outside, float("-inf"))
    return torch.empty_like(log_probs).scatter_(-1, order, ordered)


def uniform(seed: Tensor, index: Tensor) -> Tensor:
    """One number in [0, 1) per row, a hash of (seed, index): two rounds of the splitmix64 finaliser."""
    mixed = _mix(seed + (index + 1) * -7046029254386353131)
    mixed = _mix(mixed ^ seed)
    return _shift_right(mixed, 64 - UNIFORM_BITS).float() / float(1 << UNIFORM_BITS)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * -4658895280553007687
    x = (x ^ _shift_right(x, 27)) * -7723592293110705685
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
