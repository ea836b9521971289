"""Sampling with counter-based noise: the same (seed, index) gives the same token, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.penalties import PenaltyState, apply_penalties

UNIFORM_BITS = 23  # k / 2^23 times a float32 total stays below that total, so a sample is never past the end
FIRE_TEMPERATURE, FIRE_TOP_K = 30.0, 16


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling settings of a batch as tensors [B]."""

    temperature: Tensor  # of the reported log-probs
    sample_temperature: Tensor | None  # where it differs for some sequence (FIRE)
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor | None  # None: not used
    greedy: Tensor
    seed: Tensor
    penalties: list[tuple[int, PenaltyState]]  # (index in the batch, state) where there are any
    any_greedy: bool
    any_restricted: bool
    num_top: list[int] | None  # top tokens to report per sequence; None: not used

    @staticmethod
    def of(
        settings: Sequence[Sampling],
        seeds: Sequence[int],
        device: torch.device,
        penalties: Sequence[PenaltyState | None] = (),
        first: bool = False,
    ) -> SamplingBatch:
        """`first`: for the first token of a response, where FIRE changes the settings."""
        effective = [fire_settings(s) for s in settings] if first else settings
        temperature = [1.0 if s.greedy else s.temperature for s in settings]
        sample_temperature = [1.0 if s.greedy else s.temperature for s in effective]
        greedy = [s.greedy for s in settings]
        return SamplingBatch(
            temperature=torch.tensor(temperature, device=device),
            sample_temperature=None
            if sample_temperature == temperature
            else torch.tensor(sample_temperature, device=device),
            top_k=torch.tensor([s.top_k for s in effective], device=device),
            top_p=torch.tensor([s.top_p for s in effective], device=device),
            min_p=torch.tensor([s.min_p for s in effective], device=device)
            if any(s.min_p for s in effective)
            else None,
            greedy=torch.tensor(greedy, device=device),
            seed=torch.tensor(list(seeds), dtype=torch.int64, device=device),
            penalties=[(row, state) for row, state in enumerate(penalties) if state is not None],
            any_greedy=any(greedy),
            any_restricted=any(not s.greedy and (s.top_k > 0 or s.top_p < 1 or s.min_p > 0) for s in effective),
            num_top=[s.logprobs or 0 for s in settings] if any(s.logprobs for s in settings) else None,
        )

    def rows(self, row_of: Tensor) -> SamplingBatch:
        """The batch with row `row_of[i]` in place i, in ascending order; a row with penalties occurs once."""
        columns = {
            name: None if column is None else column[row_of]
            for name in ("temperature", "sample_temperature", "top_k", "top_p", "min_p", "greedy", "seed")
            for column in (getattr(self, name),)
        }
        numbers = row_of.tolist() if self.penalties or self.num_top is not None else []
        return replace(
            self,
            **columns,
            penalties=[(numbers.index(row), state) for row, state in self.penalties],
            num_top=None if self.num_top is None else [self.num_top[row] for row in numbers],
        )


def fire_settings(sampling: Sampling) -> Sampling:
    """FIRE (arXiv 2410.21236): the first token is sampled almost uniformly from the top few."""
    if not sampling.fire or sampling.greedy:
        return sampling
    top_k = sampling.top_k if sampling.top_k > 0 else FIRE_TOP_K
    return replace(sampling, temperature=FIRE_TEMPERATURE, top_k=top_k, top_p=1.0, min_p=0.0)


@dataclass(frozen=True)
class SampledTokens:
    """One token per sequence, its log-prob, and the top tokens where requested."""

    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]] | None

    def at(self, rows: Sequence[int]) -> SampledTokens:
        """Those of some rows."""
        tokens, log_probs = [self.tokens[row] for row in rows], [self.log_probs[row] for row in rows]
        return SampledTokens(tokens, log_probs, None if self.top is None else [self.top[row] for row in rows])


def sample_to_host(logits: Tensor, batch: SamplingBatch, index: Tensor) -> SampledTokens:
    tokens, log_probs = sample(logits, batch, index)
    return SampledTokens(tokens.tolist(), log_probs.tolist(), top_tokens(logits, batch))


def sample(logits: Tensor, batch: SamplingBatch, index: Tensor) -> tuple[Tensor, Tensor]:
    """logits [B, V] -> tokens [B] and their log-softmax(logits / temperature); `index` [B]: place in the response."""
    log_probs = torch.log_softmax(logits.float() / batch.temperature[:, None], -1)
    changed = batch.penalties or batch.sample_temperature is not None
    weights = _sample_log_probs(logits, log_probs, batch) if changed else log_probs
    return sample_from(log_probs, weights, batch, index)


def sample_from(log_probs: Tensor, weights: Tensor, batch: SamplingBatch, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sample from `weights` and report `log_probs`; both are log-probs [B, V]. Never synchronizes with the host."""
    kept = restrict(weights, batch.top_k, batch.top_p, batch.min_p) if batch.any_restricted else weights
    cumulative = kept.exp().cumsum(-1)
    point = uniform(batch.seed, index)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, point, right=True).squeeze(-1)
    tokens = tokens.clamp(max=log_probs.shape[-1] - 1)  # a parallel sum may end below one of its partial sums
    if batch.any_greedy:
        tokens = torch.where(batch.greedy, weights.argmax(-1), tokens)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _sample_log_probs(logits: Tensor, log_probs: Tensor, batch: SamplingBatch) -> Tensor:
    """Log-probs to sample from where FIRE or penalties make them differ from the reported ones."""
    if batch.sample_temperature is None:
        temperature, weights = batch.temperature, log_probs
    else:
        temperature = batch.sample_temperature
        weights = torch.log_softmax(logits.float() / temperature[:, None], -1)
    if batch.penalties:
        rows = torch.tensor([row for row, _ in batch.penalties], device=logits.device)
        penalized = apply_penalties(logits[rows].float(), [state for _, state in batch.penalties])
        weights = weights.index_copy(0, rows, torch.log_softmax(penalized / temperature[rows, None], -1))
    return weights


def top_tokens(logits: Tensor, batch: SamplingBatch) -> list[list[tuple[int, float]]] | None:
    """Per sequence the requested number of (token, log-prob) pairs, best first."""
    if batch.num_top is None:
        return None
    log_probs = torch.log_softmax(logits.float() / batch.temperature[:, None], -1)
    values, ids = log_probs.topk(min(max(batch.num_top), logits.shape[-1]), dim=-1)
    columns = zip(ids.tolist(), values.tolist(), batch.num_top, strict=True)
    return [list(zip(tokens[:count], tops[:count], strict=True)) for tokens, tops, count in columns]


def restrict(log_probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """-inf for tokens that min_p, then top_k, then top_p exclude.

    min_p keeps tokens with at least that fraction of the top token's probability, top_k the most likely ones, top_p the
    smallest set that holds that share of what is left.
    """
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    if min_p is not None:
        ordered = ordered.masked_fill(ordered < ordered[:, :1] + min_p[:, None].log(), float("-inf"))
    rank = torch.arange(log_probs.shape[-1], device=log_probs.device)
    limit = torch.where(top_k > 0, top_k, log_probs.shape[-1])[:, None]
    ordered = ordered.masked_fill(rank >= limit, float("-inf"))
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    # top_p = 1 excludes nothing, even where the sum before a token rounds to 1: other sequences must not matter.
    outside = (before >= top_p[:, None]) & (top_p < 1)[:, None] & (rank > 0)
    ordered = ordered.masked_fill(outside, float("-inf"))
    return torch.empty_like(log_probs).scatter_(-1, order, ordered)


def uniform(seed: Tensor, index: Tensor) -> Tensor:
    """One number in [0, 1) per sequence, a hash of (seed, index): two rounds of the splitmix64 finalizer."""
    mixed = _mix(seed + (index + 1) * -7046029254386353131)
    mixed = _mix(mixed ^ seed)
    return _shift_right(mixed, 64 - UNIFORM_BITS).float() / float(1 << UNIFORM_BITS)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * -4658895280553007687
    x = (x ^ _shift_right(x, 27)) * -7723592293110705685
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64; torch's shift is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
