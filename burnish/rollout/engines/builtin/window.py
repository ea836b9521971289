"""The device loop's batch at a sync: how far each sequence has come, and the tokens that a window generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from burnish.rollout.engines.builtin.device_batch import DeviceBatch
from burnish.rollout.engines.builtin.sequence import NO_SLOT, SequenceState


class BatchState(NamedTuple):
    """[sequences] each, as of the last sync; the host's token lists may lag behind."""

    slot: np.ndarray  # NO_SLOT: not on the device yet
    length: np.ndarray  # cached tokens
    remaining: np.ndarray  # tokens until max_tokens

    @staticmethod
    def of(sequences: Sequence[SequenceState], batch: DeviceBatch) -> BatchState:
        slot = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        length, num_tokens, limit = (batch.column(name)[slot] for name in ("length", "num_tokens", "limit"))
        remaining = limit - num_tokens
        for number in np.flatnonzero(slot == NO_SLOT).tolist():
            sequence = sequences[number]
            length[number] = sequence.num_cached
            remaining[number] = sequence.max_tokens - len(sequence.tokens)
        return BatchState(slot, length, remaining)

    @property
    def has_new(self) -> bool:
        return bool((self.slot == NO_SLOT).any())

    def missing_blocks(self, num_steps: int, num_blocks: np.ndarray, block_size: int) -> Iterator[tuple[int, int]]:
        """(index, tokens to hold) of sequences whose blocks may not hold their next tokens.

        `num_blocks`: of every slot; a new sequence is always included.
        """
        needed = self.length + np.minimum(num_steps, self.remaining)
        short = np.flatnonzero((needed > num_blocks[self.slot] * block_size) | (self.slot == NO_SLOT))
        return zip(short.tolist(), needed[short].tolist(), strict=True)


class WindowTokens(NamedTuple):
    """What a window generated for one sequence."""

    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]] | None
    ended: bool  # by a token or by its length, as the device tests it


class Window:
    """The tokens of one window; valid until the next one is synchronized, even after the batch was rearranged.

    Converted to lists sequence by sequence: a thousand small lists at once would trigger the garbage collector.
    """

    def __init__(self, batch: DeviceBatch, num_tokens_before: np.ndarray) -> None:
        self.sequences = batch.sequences  # by slot
        slots = slice(len(self.sequences))
        self.num_tokens: list[int] = (batch.column("num_tokens") - num_tokens_before)[slots].tolist()
        self.active: list[int] = batch.column("active")[slots].tolist()
        self._tokens, self._log_probs = batch.tokens.host, batch.log_probs.host
        self._top = (batch.top_ids.host, batch.top_values.host) if batch.mode.top else None

    @property
    def ended(self) -> list[SequenceState]:
        return [sequence for sequence, active in zip(self.sequences, self.active, strict=True) if not active]

    def __iter__(self) -> Iterator[tuple[SequenceState, WindowTokens]]:
        for slot, (sequence, count, active) in enumerate(
            zip(self.sequences, self.num_tokens, self.active, strict=True)
        ):
            tokens, log_probs = self._tokens[slot, :count].tolist(), self._log_probs[slot, :count].tolist()
            num_top = sequence.request.sampling.logprobs or 0
            top = None if self._top is None else self._top_tokens(*self._top, slot, count, num_top)
            yield sequence, WindowTokens(tokens, log_probs, top, not active)

    @staticmethod
    def _top_tokens(
        ids: np.ndarray, values: np.ndarray, slot: int, count: int, num_top: int
    ) -> list[list[tuple[int, float]]]:
        columns = (part[slot, :count, :num_top].tolist() for part in (ids, values))
        return [list(zip(*pair, strict=True)) for pair in zip(*columns, strict=True)]
