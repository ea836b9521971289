"""Sampling on the device with more than a temperature: top-k/top-p/min-p, penalties, bans, top tokens.

Gives the same tokens as sampling.py and penalties.py, from tensors alone. Penalties are recounted from the tokens at
every step, so there is no state to update when sequences move to other slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from burnish.rollout.engines.builtin.device_batch import SamplingMode
from burnish.rollout.engines.builtin.sampling import SamplingBatch, sample_from

CHUNK = 128  # sequences whose whole vocabulary is sorted together: bounds the memory


class DeviceTensor(Protocol):
    @property
    def device(self) -> Tensor: ...


class SamplingRows(Protocol):
    """Settings and tokens of the rows to sample: those of a DeviceBatch, or verify_step.BatchRows."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def end_ids(self) -> DeviceTensor: ...

    @property
    def bad_prefixes(self) -> DeviceTensor: ...

    @property
    def bad_last(self) -> DeviceTensor: ...

    @property
    def history(self) -> DeviceTensor: ...

    def tensor(self, name: str, count: int) -> Tensor:
        """[count] a column of the first rows."""
        ...


@dataclass(frozen=True)
class DeviceSample:
    """[B] tokens and log-probs; [B, top] the top tokens, where requested."""

    tokens: Tensor
    log_probs: Tensor
    top_ids: Tensor | None = None
    top_values: Tensor | None = None


def sample_slots(logits: Tensor, batch: SamplingRows, mode: SamplingMode, start: int = 0) -> DeviceSample:
    """For the slots from `start` on, one per row of the logits [rows, vocabulary] (float32, after the soft cap)."""
    starts = range(start, start + len(logits), CHUNK)
    parts = [_sample(part, first, batch, mode) for first, part in zip(starts, logits.split(CHUNK), strict=True)]
    tokens, log_probs = (torch.cat(column) for column in ([p.tokens for p in parts], [p.log_probs for p in parts]))
    top_ids = [p.top_ids for p in parts if p.top_ids is not None]
    top_values = [p.top_values for p in parts if p.top_values is not None]
    if not top_ids:
        return DeviceSample(tokens, log_probs)
    return DeviceSample(tokens, log_probs, torch.cat(top_ids), torch.cat(top_values))


def _sample(logits: Tensor, start: int, batch: SamplingRows, mode: SamplingMode) -> DeviceSample:
    settings = slot_settings(batch, start, len(logits), mode.restricted)
    index = _slots(batch, "num_tokens", start, len(logits))
    log_probs = torch.log_softmax(logits / settings.temperature[:, None], -1)
    weights = log_probs
    if mode.looks_back:
        penalized = apply_penalties_on_device(logits, batch, start)
        weights = torch.log_softmax(penalized / settings.temperature[:, None], -1)
    tokens, sampled = sample_from(log_probs, weights, settings, index)
    if not mode.top:
        return DeviceSample(tokens, sampled)
    values, ids = log_probs.topk(min(mode.top, logits.shape[-1]), dim=-1)
    missing = mode.top - ids.shape[-1]  # a vocabulary smaller than the requested number
    pad = torch.nn.functional.pad
    return DeviceSample(tokens, sampled, pad(ids, (0, missing)), pad(values, (0, missing), value=float("-inf")))


def slot_settings(batch: SamplingRows, start: int, count: int, restricted: bool) -> SamplingBatch:
    """The settings of `count` slots, as they are on the device."""
    names = ("temperature", "top_k", "top_p", "min_p", "greedy", "seed")
    columns = {name: _slots(batch, name, start, count) for name in names}
    columns["greedy"] = columns["greedy"].bool()
    return SamplingBatch(
        **columns, sample_temperature=None, penalties=[], any_greedy=True, any_restricted=restricted, num_top=None
    )


def apply_penalties_on_device(logits: Tensor, batch: SamplingRows, start: int) -> Tensor:
    """The logits after bans, then repetition, frequency and presence penalties (see PenaltyState)."""
    count, vocabulary = logits.shape
    slots = slice(start, start + count)
    num_tokens, num_prompt = (_slots(batch, name, start, count)[:, None] for name in ("num_tokens", "num_prompt"))
    history = batch.history.device[slots]
    position = torch.arange(history.shape[1], device=logits.device)
    in_prompt = position < num_prompt
    in_response = (position >= num_prompt) & (position < num_prompt + num_tokens)

    banned = torch.zeros(count, vocabulary + 1, dtype=torch.bool, device=logits.device)  # the last column: no token
    bans = [_early_ends(batch, start, num_tokens, vocabulary), _bad_words(batch, start, num_tokens, num_prompt)]
    banned.scatter_(1, torch.cat(bans, dim=1), True)
    logits = logits.masked_fill(banned[:, :vocabulary], float("-inf"))

    counts, prompt_counts = (
        torch.zeros(count, vocabulary, device=logits.device).scatter_add_(1, history, part.float())
        for part in (in_response, in_prompt)
    )
    repetition, frequency, presence = (
        _slots(batch, name, start, count)[:, None] for name in ("repetition", "frequency", "presence")
    )
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where((counts > 0) | (prompt_counts > 0), repeated, logits)
    return logits - frequency * counts - presence * (counts > 0)


def _early_ends(batch: SamplingRows, start: int, num_tokens: Tensor, vocabulary: int) -> Tensor:
    """Tokens that would end a response before its min_tokens; `vocabulary` stands for none."""
    count = len(num_tokens)
    end_ids = batch.end_ids.device[start : start + count]
    early = num_tokens < _slots(batch, "min_tokens", start, count)[:, None]
    return torch.where(early & (end_ids >= 0), end_ids, vocabulary)


def _bad_words(batch: SamplingRows, start: int, num_tokens: Tensor, num_prompt: Tensor) -> Tensor:
    """The last tokens of bad words whose beginnings are the newest tokens."""
    count = len(num_tokens)
    beginnings, last = (part.device[start : start + count] for part in (batch.bad_prefixes, batch.bad_last))
    back = torch.arange(beginnings.shape[2], device=num_tokens.device)
    position = (num_prompt + num_tokens - 1 - back).clamp(min=0)  # the newest tokens, newest first
    newest = batch.history.device[start : start + count].gather(1, position)[:, None]
    missing = beginnings < 0  # a shorter word
    matches = (missing | ((newest == beginnings) & (back < num_tokens)[:, None])).all(-1)
    return torch.where(matches, last, batch.vocabulary)


def _slots(batch: SamplingRows, name: str, start: int, count: int) -> Tensor:
    return batch.tensor(name, start + count)[start:]
