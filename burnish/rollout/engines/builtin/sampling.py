"""Choosing the next token with addressed noise: the same (seed, index) gives the same draw, whoever is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.past import Past, bend

UNIFORM_BITS = 23  # k / 2^23 times a float32 total stays below that total, so a draw never falls off the end
FIRE_TEMPERATURE, FIRE_TOP_K = 30.0, 16


@dataclass(frozen=True)
class SamplingRows:
    """The sampling settings of the running rows as tensors [B]."""

    temperature: Tensor  # of the log-probs
    heat: Tensor | None  # of the draw, where some row's is another
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor | None  # None: nobody asked
    greedy: Tensor
    seed: Tensor
    pasts: list[tuple[int, Past]]  # of the rows whose past matters
    any_greedy: bool
    any_restricted: bool
    num_top: list[int] | None  # likeliest tokens to report per row; None: nobody asked

    @staticmethod
    def of(
        settings: Sequence[Sampling],
        seeds: Sequence[int],
        device: torch.device,
        pasts: Sequence[Past | None] = (),
        first: bool = False,
    ) -> SamplingRows:
        """`first`: for the first token of responses, which FIRE draws in its own way."""
        drawn = [first_token(s) for s in settings] if first else settings
        temperature = [1.0 if s.greedy else s.temperature for s in settings]
        heat = [1.0 if s.greedy else s.temperature for s in drawn]
        greedy = [s.greedy for s in settings]
        return SamplingRows(
            temperature=torch.tensor(temperature, device=device),
            heat=None if heat == temperature else torch.tensor(heat, device=device),
            top_k=torch.tensor([s.top_k for s in drawn], device=device),
            top_p=torch.tensor([s.top_p for s in drawn], device=device),
            min_p=torch.tensor([s.min_p for s in drawn], device=device) if any(s.min_p for s in drawn) else None,
            greedy=torch.tensor(greedy, device=device),
            seed=torch.tensor(list(seeds), dtype=torch.int64, device=device),
            pasts=[(row, past) for row, past in enumerate(pasts) if past is not None],
            any_greedy=any(greedy),
            any_restricted=any(not s.greedy and (s.top_k > 0 or s.top_p < 1 or s.min_p > 0) for s in drawn),
            num_top=[s.logprobs or 0 for s in settings] if any(s.logprobs for s in settings) else None,
        )


def first_token(sampling: Sampling) -> Sampling:
    """FIRE (arXiv 2410.21236): the first token is drawn almost evenly among the few likeliest ones."""
    if not sampling.fire or sampling.greedy:
        return sampling
    top_k = sampling.top_k if sampling.top_k > 0 else FIRE_TOP_K
    return replace(sampling, temperature=FIRE_TEMPERATURE, top_k=top_k, top_p=1.0, min_p=0.0)


@dataclass(frozen=True)
class Drawn:
    """One token per row, its log-prob, and the likeliest tokens where they were asked for."""

    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]] | None


def draw(logits: Tensor, rows: SamplingRows, index: Tensor) -> Drawn:
    """What `choose` chooses, on the host."""
    tokens, log_probs = choose(logits, rows, index)
    return Drawn(tokens.tolist(), log_probs.tolist(), likeliest(logits, rows))


def choose(logits: Tensor, rows: SamplingRows, index: Tensor) -> tuple[Tensor, Tensor]:
    """logits [B, V] -> tokens [B] and log-softmax(logits / temperature) at them; `index` is the token's place [B]."""
    log_probs = torch.log_softmax(logits.float() / rows.temperature[:, None], -1)
    weights = _draw_weights(logits, log_probs, rows) if rows.pasts or rows.heat is not None else log_probs
    return pick(log_probs, weights, rows, index)


def pick(log_probs: Tensor, weights: Tensor, rows: SamplingRows, index: Tensor) -> tuple[Tensor, Tensor]:
    """Draw by `weights`, report `log_probs`; both are log-probs [B, V]. Asks the host nothing."""
    kept = restrict(weights, rows.top_k, rows.top_p, rows.min_p) if rows.any_restricted else weights
    cumulative = kept.exp().cumsum(-1)
    point = uniform(rows.seed, index)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, point, right=True).squeeze(-1)
    tokens = tokens.clamp(max=log_probs.shape[-1] - 1)  # a sum made in parallel may end below one of its parts
    if rows.any_greedy:
        tokens = torch.where(rows.greedy, weights.argmax(-1), tokens)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _draw_weights(logits: Tensor, log_probs: Tensor, rows: SamplingRows) -> Tensor:
    """Log-probs to draw by, where FIRE or a row's past makes them other than those to report."""
    heat = rows.temperature if rows.heat is None else rows.heat
    weights = log_probs if rows.heat is None else torch.log_softmax(logits.float() / heat[:, None], -1)
    if rows.pasts:
        numbers = torch.tensor([row for row, _ in rows.pasts], device=logits.device)
        bent = bend(logits[numbers].float(), [past for _, past in rows.pasts])
        weights = weights.index_copy(0, numbers, torch.log_softmax(bent / heat[numbers, None], -1))
    return weights


def likeliest(logits: Tensor, rows: SamplingRows) -> list[list[tuple[int, float]]] | None:
    """Per row the (token, log-prob) pairs that it asked for, best first."""
    if rows.num_top is None:
        return None
    log_probs = torch.log_softmax(logits.float() / rows.temperature[:, None], -1)
    values, ids = log_probs.topk(min(max(rows.num_top), logits.shape[-1]), dim=-1)
    pairs = zip(ids.tolist(), values.tolist(), rows.num_top, strict=True)
    return [list(zip(tokens[:count], found[:count], strict=True)) for tokens, found, count in pairs]


def restrict(log_probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """-inf outside what min_p, then top_k, then top_p leave.

    min_p keeps tokens that are at least so likely beside the likeliest, top_k the likeliest ones, top_p the smallest
    set that holds so much of the rest.
    """
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    if min_p is not None:
        ordered = ordered.masked_fill(ordered < ordered[:, :1] + min_p[:, None].log(), float("-inf"))
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
