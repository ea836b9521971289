"""Sampling on the device that needs more than a temperature: limits, penalties, bans, likeliest tokens.

The same choices as builtin/sampling.py and builtin/past.py make on the host, from tensors alone: what a row's past does
is counted from its tokens anew at every step, so nothing must be kept up to date when rows move.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.rollout.engines.builtin.device_rows import DeviceRows, Mode
from burnish.rollout.engines.builtin.sampling import SamplingRows, pick

AT_ONCE = 128  # rows whose whole vocabulary is sorted together: bounds the memory


@dataclass(frozen=True)
class Chosen:
    """[rows] tokens and log-probs; and [rows, top] the likeliest, where they were asked for."""

    tokens: Tensor
    log_probs: Tensor
    top_ids: Tensor | None = None
    top_values: Tensor | None = None


def choose_slowly(logits: Tensor, rows: DeviceRows, mode: Mode, start: int = 0) -> Chosen:
    """For the places from `start`, one for each row of the logits [rows, vocabulary] (float32, capped)."""
    places = range(start, start + len(logits), AT_ONCE)
    parts = [_choose(part, place, rows, mode) for place, part in zip(places, logits.split(AT_ONCE), strict=True)]
    columns = zip(*((p.tokens, p.log_probs, p.top_ids, p.top_values) for p in parts), strict=True)
    return Chosen(*(None if column[0] is None else torch.cat(column) for column in columns))


def _choose(logits: Tensor, start: int, rows: DeviceRows, mode: Mode) -> Chosen:
    settings = settings_of(rows, start, len(logits), mode.restricted)
    index = _part(rows, "made", start, len(logits))
    log_probs = torch.log_softmax(logits / settings.temperature[:, None], -1)
    weights = log_probs
    if mode.looks_back:
        bent = bend_on_device(logits, rows, start)
        weights = torch.log_softmax(bent / settings.temperature[:, None], -1)
    tokens, found = pick(log_probs, weights, settings, index)
    if not mode.top:
        return Chosen(tokens, found)
    values, ids = log_probs.topk(min(mode.top, logits.shape[-1]), dim=-1)
    missing = mode.top - ids.shape[-1]  # a vocabulary smaller than what was asked for
    pad = torch.nn.functional.pad
    return Chosen(tokens, found, pad(ids, (0, missing)), pad(values, (0, missing), value=float("-inf")))


def settings_of(rows: DeviceRows, start: int, count: int, restricted: bool) -> SamplingRows:
    """The rows' settings where they stand on the device."""
    names = ("temperature", "top_k", "top_p", "min_p", "greedy", "seed")
    found = {name: _part(rows, name, start, count) for name in names}
    found["greedy"] = found["greedy"].bool()
    return SamplingRows(**found, heat=None, pasts=[], any_greedy=True, any_restricted=restricted, num_top=None)


def bend_on_device(logits: Tensor, rows: DeviceRows, start: int) -> Tensor:
    """The logits after bans, then repetition, frequency and presence penalties (see Past)."""
    count, vocabulary = logits.shape
    here = slice(start, start + count)
    made, prompt = (_part(rows, name, start, count)[:, None] for name in ("made", "prompt"))
    history = rows.history.device[here]
    place = torch.arange(history.shape[1], device=logits.device)
    told, answered = place < prompt, (place >= prompt) & (place < prompt + made)

    banned = torch.zeros(count, vocabulary + 1, dtype=torch.bool, device=logits.device)  # the last: of no token
    bans = torch.cat([_early_ends(rows, start, made, vocabulary), _bad_words(rows, start, made, prompt)], dim=1)
    banned.scatter_(1, bans, True)
    bent = logits.masked_fill(banned[:, :vocabulary], float("-inf"))

    counts = torch.zeros(count, vocabulary, device=logits.device).scatter_add_(1, history, answered.float())
    asked = torch.zeros(count, vocabulary, device=logits.device).scatter_add_(1, history, told.float())
    repetition, frequency, presence = (
        _part(rows, name, start, count)[:, None] for name in ("repetition", "frequency", "presence")
    )
    bent = torch.where((counts > 0) | (asked > 0), torch.where(bent > 0, bent / repetition, bent * repetition), bent)
    return bent - frequency * counts - presence * (counts > 0)


def _early_ends(rows: DeviceRows, start: int, made: Tensor, vocabulary: int) -> Tensor:
    """Tokens that would end a response before its min_tokens; `vocabulary` stands for none."""
    count = len(made)
    ends = rows.ends.device[start : start + count]
    early = made < _part(rows, "min_tokens", start, count)[:, None]
    return torch.where(early & (ends >= 0), ends, vocabulary)


def _bad_words(rows: DeviceRows, start: int, made: Tensor, prompt: Tensor) -> Tensor:
    """The last tokens of bad words whose beginnings are the newest tokens."""
    count = len(made)
    beginnings, last = (pool.device[start : start + count] for pool in (rows.beginnings, rows.banned))
    back = torch.arange(beginnings.shape[2], device=made.device)
    place = (prompt + made - 1 - back).clamp(min=0)  # the newest tokens, newest first
    newest = rows.history.device[start : start + count].gather(1, place)[:, None]
    missing = beginnings < 0  # a shorter word
    matches = (missing | ((newest == beginnings) & (back < made)[:, None])).all(-1)
    return torch.where(matches, last, rows.vocabulary)


def _part(rows: DeviceRows, name: str, start: int, count: int) -> Tensor:
    return rows.tensor(name, start + count)[start:]
