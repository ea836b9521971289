"""PenaltyState: what a response's earlier tokens do to its next one (penalties, bad words, min_tokens)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.engine import Request


class PenaltyState:
    """Distinct tokens of one sequence, with their count in the response (0: only in the prompt)."""

    def __init__(self, request: Request, eos_ids: Collection[int]) -> None:
        self.sampling = request.sampling
        self.prompt = request.input.ids
        self.end_ids = sorted({*self.sampling.stop_token_ids, *(() if self.sampling.ignore_eos else eos_ids)})
        self.clear()

    @staticmethod
    def of(request: Request, eos_ids: Collection[int]) -> PenaltyState | None:
        """None where sampling does not depend on earlier tokens, which is the usual case."""
        return PenaltyState(request, eos_ids) if request.sampling.looks_back else None

    def clear(self) -> None:
        """Back to the prompt."""
        self.tokens: list[int] = []
        self.index: dict[int, int] = {}
        self.ids, self.counts = array("q"), array("f")
        if self.sampling.repetition_penalty != 1:  # the only penalty that counts prompt tokens
            for token in self.prompt:
                self._index_of(token)

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self.counts[self._index_of(token)] += 1

    def _index_of(self, token: int) -> int:
        if token not in self.index:
            self.index[token] = len(self.ids)
            self.ids.append(token)
            self.counts.append(0)
        return self.index[token]

    def banned(self) -> list[int]:
        """Tokens that must not come next: an end before min_tokens, the last token of a bad word."""
        banned = list(self.end_ids) if len(self.tokens) < self.sampling.min_tokens else []
        for *beginning, last in self.sampling.bad_words:
            if not beginning or self.tokens[-len(beginning) :] == beginning:
                banned.append(last)
        return banned


def apply_penalties(logits: Tensor, states: Sequence[PenaltyState]) -> Tensor:
    """[B, V] before the temperature, in vLLM's order: bans, then repetition, frequency and presence penalties."""
    logits = logits.clone()
    bans = [(row, token) for row, state in enumerate(states) for token in state.banned()]
    if bans:
        logits[tuple(torch.tensor(bans, device=logits.device).t())] = float("-inf")
    if any(state.sampling.penalized for state in states):
        _penalize(logits, states)
    return logits


def _penalize(logits: Tensor, states: Sequence[PenaltyState]) -> None:
    """In place, at the tokens that occur only: the vocabulary is far larger than any response."""
    rows = np.repeat(np.arange(len(states)), [len(state.ids) for state in states])
    settings = [
        (s.sampling.repetition_penalty, s.sampling.frequency_penalty, s.sampling.presence_penalty) for s in states
    ]
    repetition, frequency, presence = np.array(settings, dtype=np.float32)[rows].T
    columns = (np.concatenate([np.asarray(state.ids) for state in states]), repetition, frequency, presence)
    counts = np.concatenate([np.asarray(state.counts) for state in states])
    ids, repetition, frequency, presence, counts, rows = (
        torch.from_numpy(np.ascontiguousarray(part)).to(logits.device) for part in (*columns, counts, rows)
    )
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[rows, ids] = values - frequency * counts - presence * (counts > 0)
