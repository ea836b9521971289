"""DeviceBatch: the running sequences as tensors of fixed addresses on the device, mirrored on the host.

Between two host syncs only the device changes them: newest token, cached tokens, response tokens, active or not. At a
sync the host reads those back, and writes everything again where sequences were added, removed or got blocks. Sequences
that need more than a temperature come first, so that the slow part of sampling runs on them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.sequence import NO_SLOT, SequenceState
from burnish.sizing import FLOAT_COLUMNS as FLOATS
from burnish.sizing import INT_COLUMNS as INTS
from burnish.sizing import NUM_STOP_TOKENS
from burnish.sizing import UPDATED_COLUMNS as MOVING

# Columns that the device changes come first; the host alone writes the others.
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "repetition": 1.0, "top_k": -1}  # values of an empty slot
NO_TOKEN = -1


class Mirror:
    """A tensor on the device and its copy on the host, in pinned memory."""

    def __init__(self, size: tuple[int, ...], dtype: torch.dtype, device: torch.device, fill: float = 0) -> None:
        self.fill = fill
        on_gpu = device.type == "cuda"
        self._host = torch.full(size, fill, dtype=dtype, pin_memory=on_gpu)
        self.host: np.ndarray = self._host.numpy()
        self.device = torch.full(size, fill, dtype=dtype, device=device)

    def push(self, rows: slice = slice(None)) -> None:
        self.device[rows].copy_(self._host[rows], non_blocking=True)

    def pull(self, rows: slice = slice(None)) -> None:
        """Start copying to the host; complete after a stream synchronization."""
        self._host[rows].copy_(self.device[rows], non_blocking=True)

    def move(self, source: np.ndarray, target: np.ndarray, axis: int) -> None:
        """Move the entries of some slots to others, and clear all other slots."""
        kept = self.host.take(source, axis=axis)
        self.host.fill(self.fill)
        self.host[(slice(None),) * axis + (target,)] = kept


class SamplingMode(NamedTuple):
    """What sampling has to do besides temperature, and for how many sequences (from the first)."""

    num_slow: int = 0
    restricted: bool = False  # top_k, top_p or min_p
    looks_back: bool = False  # penalties, bad words, min_tokens
    top: int = 0  # top tokens to report


PLAIN = SamplingMode()


@dataclass(frozen=True)
class Widths:
    """Capacity of the per-sequence tables; growing one moves it to another address."""

    end_ids: int = NUM_STOP_TOKENS
    words: int = 0
    word: int = 0
    top: int = 0
    history: bool = False

    def including(self, sampling: Sampling, end_ids: Collection[int]) -> Widths:
        """Wide enough for this sequence too."""
        words, longest = len(sampling.bad_words), max(map(len, sampling.bad_words), default=0)
        return Widths(
            _grown(self.end_ids, len(end_ids)),
            _grown(self.words, words),
            _grown(self.word, longest),
            _grown(self.top, sampling.logprobs or 0),
            self.history or sampling.looks_back,
        )


class DeviceBatch:
    """Slot i of every tensor is `sequences[i]`; slots behind the last sequence are inactive."""

    def __init__(
        self,
        num_slots: int,
        max_blocks: int,
        max_model_len: int,
        vocabulary: int,
        sync_interval: int,
        device: torch.device,
    ) -> None:
        self.num_slots, self.max_model_len, self.vocabulary = num_slots, max_model_len, vocabulary
        self.sync_interval = sync_interval
        self.device = device
        self.ints = Mirror((len(INTS), num_slots), torch.int64, device)
        self.floats = Mirror((len(FLOATS), num_slots), torch.float32, device)
        self.tables = Mirror((num_slots, max_blocks), torch.int32, device)
        self.num_blocks = np.zeros(num_slots, dtype=np.int64)  # of each sequence's table
        self.step = torch.zeros(1, dtype=torch.int64, device=device)  # since the last sync
        self.tokens = Mirror((num_slots, sync_interval), torch.int64, device)
        self.log_probs = Mirror((num_slots, sync_interval), torch.float32, device)
        self.widths = Widths()
        self._allocate(self.widths)
        self.sequences: list[SequenceState] = []
        self.mode = PLAIN
        self._dirty = True  # the host has written something that the device does not have
        self._clear(np.arange(num_slots))

    def _allocate(self, widths: Widths) -> None:
        self.widths, num_slots, device = widths, self.num_slots, self.device
        self.end_ids = Mirror((num_slots, widths.end_ids), torch.int64, device, NO_TOKEN)
        # A bad word bans its last token where the tokens before it, newest first, are the response's newest.
        self.bad_prefixes = Mirror((num_slots, widths.words, max(0, widths.word - 1)), torch.int64, device, NO_TOKEN)
        self.bad_last = Mirror((num_slots, widths.words), torch.int64, device, self.vocabulary)
        # One more than the longest sequence: inactive slots write there.
        self.history = Mirror((num_slots, self.max_model_len + 1 if widths.history else 0), torch.int64, device)
        self.top_ids = Mirror((num_slots, self.sync_interval, widths.top), torch.int64, device)
        self.top_values = Mirror((num_slots, self.sync_interval, widths.top), torch.float32, device)

    def arrange(self, sequences: Sequence[SequenceState], end_ids: Callable[[SequenceState], Collection[int]]) -> bool:
        """Make these the batch, slow ones first; True if tensors moved to other addresses.

        `end_ids`: the tokens that end a sequence.
        """
        widths = self.widths
        for sequence in sequences:
            if sequence.slot == NO_SLOT:
                widths = widths.including(sequence.request.sampling, end_ids(sequence))
        grown = widths != self.widths
        if grown:
            self._allocate(widths)
            for sequence in sequences:
                sequence.slot = NO_SLOT  # everything is written again
        ordered = sorted(sequences, key=lambda sequence: not sequence.needs_slow_sampling)
        source = np.array([sequence.slot for sequence in ordered], dtype=np.int64)
        target = np.flatnonzero(source >= 0)
        for mirror, axis in self._by_slot():
            mirror.move(source[target], target, axis)
        num_blocks, self.num_blocks = self.num_blocks, np.zeros(self.num_slots, dtype=np.int64)
        self.num_blocks[target] = num_blocks[source[target]]
        self._clear(np.arange(len(ordered), self.num_slots))
        for slot in np.flatnonzero(source < 0).tolist():
            self._write(slot, ordered[slot], end_ids(ordered[slot]))
        for sequence in self.sequences:
            sequence.slot = NO_SLOT
        for slot, sequence in enumerate(ordered):
            sequence.slot = slot
        self.sequences = ordered
        slow = [sequence.request.sampling for sequence in ordered if sequence.needs_slow_sampling]
        self.mode = sampling_mode(slow, self.widths.top)
        self._dirty = True
        return grown

    def write_tables(self, sequences: Iterable[SequenceState]) -> None:
        """The block tables of sequences that got more blocks."""
        for sequence in sequences:
            self._write_table(sequence.slot, sequence)
            self._dirty = True

    def push(self) -> None:
        """Send what the host has changed, and start the next window."""
        self.step.zero_()
        if not self._dirty:
            return
        for mirror in (self.ints, self.floats, self.tables, self.end_ids, self.bad_prefixes, self.bad_last):
            mirror.push()
        if self.mode.looks_back:
            for slot, sequence in enumerate(self.sequences[: self.mode.num_slow]):
                tokens = [*sequence.request.input.ids, *sequence.tokens]
                self.history.host[slot, : len(tokens)] = tokens
            self.history.push(slice(self.mode.num_slow))
        self._dirty = False

    def pull(self) -> None:
        """Fetch what the device has generated; one synchronization."""
        self.ints.pull(slice(len(MOVING)))
        for mirror in (self.tokens, self.log_probs, *((self.top_ids, self.top_values) if self.mode.top else ())):
            mirror.pull()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def column(self, name: str) -> np.ndarray:
        """[num_slots] on the host."""
        return self.ints.host[INTS.index(name)] if name in INTS else self.floats.host[FLOATS.index(name)]

    def tensor(self, name: str, count: int) -> Tensor:
        """[count] on the device."""
        pool, names = (self.ints, INTS) if name in INTS else (self.floats, FLOATS)
        return pool.device[names.index(name), :count]

    def deactivate(self) -> None:
        """Make every slot inactive on the device, so that a step changes nothing, until `push`."""
        self.ints.device[INTS.index("active")].zero_()
        self.step.zero_()
        self._dirty = True

    def _by_slot(self) -> list[tuple[Mirror, int]]:
        rest = (self.tables, self.end_ids, self.bad_prefixes, self.bad_last)
        return [(self.ints, 1), (self.floats, 1), *((mirror, 0) for mirror in rest)]

    def _clear(self, slots: np.ndarray) -> None:
        for name, value in NEUTRAL.items():
            self.column(name)[slots] = value

    def _write_table(self, slot: int, sequence: SequenceState) -> None:
        self.tables.host[slot, : len(sequence.block_table)] = sequence.block_table
        self.num_blocks[slot] = len(sequence.block_table)

    def _write(self, slot: int, sequence: SequenceState, end_ids: Collection[int]) -> None:
        sampling = sequence.request.sampling
        values = {
            "token": sequence.tokens[-1],
            "length": sequence.num_cached,
            "num_tokens": len(sequence.tokens),
            "active": 1,
            "limit": sampling.max_tokens,
            "seed": sequence.request.seed,
            "greedy": int(sampling.greedy),
            "top_k": sampling.top_k,
            "min_tokens": sampling.min_tokens,
            "num_prompt": len(sequence.request.input),
            "offset": sequence.offset,
            "temperature": 1.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition": sampling.repetition_penalty,
            "frequency": sampling.frequency_penalty,
            "presence": sampling.presence_penalty,
        }
        self.ints.host[:, slot] = [values[name] for name in INTS]
        self.floats.host[:, slot] = [values[name] for name in FLOATS]
        self._write_table(slot, sequence)
        self.end_ids.host[slot, : len(end_ids)] = list(end_ids)
        for number, (*beginning, last) in enumerate(sampling.bad_words):
            self.bad_last.host[slot, number] = last
            self.bad_prefixes.host[slot, number, : len(beginning)] = beginning[::-1]


def sampling_mode(slow: Sequence[Sampling], top: int) -> SamplingMode:
    """For the slow sequences of a batch; their number is rounded up, so that few graphs serve all batches."""
    if not slow:
        return PLAIN
    return SamplingMode(
        _grown(1, len(slow)),
        any(sampling.restricts for sampling in slow),
        any(sampling.looks_back for sampling in slow),
        top if any(sampling.logprobs for sampling in slow) else 0,
    )


def _grown(capacity: int, needed: int) -> int:
    """The capacity, or the next power of two if it is too small."""
    return capacity if needed <= capacity else 1 << (needed - 1).bit_length()
