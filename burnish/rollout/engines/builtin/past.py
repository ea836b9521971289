"""Past: what a response's own past does to its next token. Penalties, bad words, and no end before min_tokens."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.engine import Request


class Past:
    """The tokens of one row: each different one once, with how often the response has it (0: only the prompt does)."""

    def __init__(self, request: Request, eos_ids: Collection[int]) -> None:
        self.sampling = request.sampling
        self.prompt = request.ids
        self.ends = sorted({*self.sampling.stop_token_ids, *(() if self.sampling.ignore_eos else eos_ids)})
        self.clear()

    @staticmethod
    def of(request: Request, eos_ids: Collection[int]) -> Past | None:
        """None where the past does not matter, which is the rule."""
        return Past(request, eos_ids) if request.sampling.looks_back else None

    def clear(self) -> None:
        """Back to the prompt."""
        self.tokens: list[int] = []
        self.place: dict[int, int] = {}
        self.ids, self.counts = array("q"), array("f")
        if self.sampling.repetition_penalty != 1:  # the only penalty that the prompt counts for
            for token in self.prompt:
                self._find(token)

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self.counts[self._find(token)] += 1

    def _find(self, token: int) -> int:
        if token not in self.place:
            self.place[token] = len(self.ids)
            self.ids.append(token)
            self.counts.append(0)
        return self.place[token]

    def banned(self) -> list[int]:
        """Tokens that must not come next: an end that comes too early, the last token of a bad word."""
        found = list(self.ends) if len(self.tokens) < self.sampling.min_tokens else []
        for *beginning, last in self.sampling.bad_words:
            if not beginning or self.tokens[-len(beginning) :] == beginning:
                found.append(last)
        return found


def bend(logits: Tensor, pasts: Sequence[Past]) -> Tensor:
    """[B, V] as vLLM bends them before the temperature: bans, then repetition, frequency and presence penalties."""
    logits = logits.clone()
    bans = [(row, token) for row, past in enumerate(pasts) for token in past.banned()]
    if bans:
        logits[tuple(torch.tensor(bans, device=logits.device).t())] = float("-inf")
    if any(past.sampling.penalised for past in pasts):
        _penalise(logits, pasts)
    return logits


def _penalise(logits: Tensor, pasts: Sequence[Past]) -> None:
    """In place, and only where a row has been: the vocabulary is far larger than any response."""
    rows = np.repeat(np.arange(len(pasts)), [len(past.ids) for past in pasts])
    settings = [
        (p.sampling.repetition_penalty, p.sampling.frequency_penalty, p.sampling.presence_penalty) for p in pasts
    ]
    repetition, frequency, presence = np.array(settings, dtype=np.float32)[rows].T
    columns = (np.concatenate([np.asarray(past.ids) for past in pasts]), repetition, frequency, presence)
    counts = np.concatenate([np.asarray(past.counts) for past in pasts])
    ids, repetition, frequency, presence, counts, rows = (
        torch.from_numpy(np.ascontiguousarray(part)).to(logits.device) for part in (*columns, counts, rows)
    )
    found = logits[rows, ids]
    found = torch.where(found > 0, found / repetition, found * repetition)
    logits[rows, ids] = found - frequency * counts - presence * (counts > 0)
