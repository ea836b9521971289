"""DeviceRows: the running rows as tensors of fixed addresses on the device, with a copy on the host.

Between two looks of the host the device alone moves them on: newest token, tokens in the cache, tokens made, active or
not. At a look the host reads those back, and writes the whole again where rows have come, gone or grown. Rows that need
more than a temperature stand first, so that the slow part of sampling sees them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.rows import Row
from burnish.sizing import FLOAT_COLUMNS as FLOATS
from burnish.sizing import INT_COLUMNS as INTS
from burnish.sizing import NUM_STOP_TOKENS
from burnish.sizing import UPDATED_COLUMNS as MOVING

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "repetition": 1.0, "top_k": -1}  # of a place that holds no row
NO_TOKEN = -1


class Mirror:
    """The same numbers on the device and, in memory that it can read directly, on the host."""

    def __init__(self, size: tuple[int, ...], dtype: torch.dtype, device: torch.device, fill: float = 0) -> None:
        self.fill = fill
        on_gpu = device.type == "cuda"
        self._host = torch.full(size, fill, dtype=dtype, pin_memory=on_gpu)
        self.host: np.ndarray = self._host.numpy()
        self.device = torch.full(size, fill, dtype=dtype, device=device)

    def push(self, rows: slice = slice(None)) -> None:
        self.device[rows].copy_(self._host[rows], non_blocking=True)

    def pull(self, rows: slice = slice(None)) -> None:
        """What the device has; there once the stream is through."""
        self._host[rows].copy_(self.device[rows], non_blocking=True)

    def move(self, source: np.ndarray, target: np.ndarray, axis: int) -> None:
        """Entries of some places to others; every other place is blank again."""
        kept = self.host.take(source, axis=axis)
        self.host.fill(self.fill)
        self.host[(slice(None),) * axis + (target,)] = kept


class Mode(NamedTuple):
    """What sampling must do beside a plain draw: how many rows (from the first) need it, and what."""

    slow: int = 0
    restricted: bool = False  # top_k, top_p or min_p
    looks_back: bool = False  # penalties, bad words, min_tokens
    top: int = 0  # likeliest tokens to report


PLAIN = Mode()


@dataclass(frozen=True)
class Widths:
    """How much room the widest row takes; growing means other addresses."""

    ends: int = NUM_STOP_TOKENS
    words: int = 0
    word: int = 0
    top: int = 0
    history: bool = False

    def holding(self, sampling: Sampling, ends: Collection[int]) -> Widths:
        """Wide enough for this row too."""
        words, longest = len(sampling.bad_words), max(map(len, sampling.bad_words), default=0)
        return Widths(
            _wide(self.ends, len(ends)),
            _wide(self.words, words),
            _wide(self.word, longest),
            _wide(self.top, sampling.logprobs or 0),
            self.history or sampling.looks_back,
        )


class DeviceRows:
    """ParallelContext i of every tensor is row i of `rows`; places behind the last row are inactive."""

    def __init__(self, places: int, blocks: int, longest: int, vocabulary: int, look_in: int, device: torch.device):
        self.places, self.longest, self.vocabulary, self.look_in = places, longest, vocabulary, look_in
        self.where = device
        self.ints = Mirror((len(INTS), places), torch.int64, device)
        self.floats = Mirror((len(FLOATS), places), torch.float32, device)
        self.tables = Mirror((places, blocks), torch.int32, device)
        self.held = np.zeros(places, dtype=np.int64)  # blocks of each row's table
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = Mirror((places, look_in), torch.int64, device)
        self.log_probs = Mirror((places, look_in), torch.float32, device)
        self.widths = Widths()
        self._make_room(self.widths)
        self.rows: list[Row] = []
        self.mode = PLAIN
        self._place: dict[int, int] = {}
        self._stale = True  # the host has written what the device does not know
        self._blank(np.arange(places))

    def _make_room(self, widths: Widths) -> None:
        self.widths, places, device = widths, self.places, self.where
        self.ends = Mirror((places, widths.ends), torch.int64, device, NO_TOKEN)
        # A bad word is banned by its last token, where those before it, newest first, are the response's newest.
        self.beginnings = Mirror((places, widths.words, max(0, widths.word - 1)), torch.int64, device, NO_TOKEN)
        self.banned = Mirror((places, widths.words), torch.int64, device, self.vocabulary)
        # One more than the longest row: what inactive rows write goes there.
        self.history = Mirror((places, self.longest + 1 if widths.history else 0), torch.int64, device)
        self.top_ids = Mirror((places, self.look_in, widths.top), torch.int64, device)
        self.top_values = Mirror((places, self.look_in, widths.top), torch.float32, device)

    def knows(self, row: Row) -> bool:
        return id(row) in self._place

    def place(self, row: Row) -> int:
        return self._place[id(row)]

    def place_or(self, row: Row, otherwise: int) -> int:
        return self._place.get(id(row), otherwise)

    def forget(self, row: Row) -> None:
        """Whatever is known of it holds no longer."""
        self._place.pop(id(row), None)

    def arrange(self, rows: Sequence[Row], ends: Callable[[Row], Collection[int]]) -> bool:
        """Let these rows stand here, slow ones first; True if tensors moved to other addresses.

        `ends`: the tokens that end a row.
        """
        wanted = self.widths
        for row in rows:
            if id(row) not in self._place:
                wanted = wanted.holding(row.request.sampling, ends(row))
        grown = wanted != self.widths
        if grown:
            self._make_room(wanted)
            self._place.clear()
        ordered = sorted(rows, key=lambda row: not row.is_slow)
        source = np.array([self._place.get(id(row), -1) for row in ordered], dtype=np.int64)
        target = np.flatnonzero(source >= 0)
        for mirror, axis in self._by_place():
            mirror.move(source[target], target, axis)
        held, self.held = self.held, np.zeros(self.places, dtype=np.int64)
        self.held[target] = held[source[target]]
        self._blank(np.arange(len(ordered), self.places))
        for place in np.flatnonzero(source < 0).tolist():
            self._write(place, ordered[place], ends(ordered[place]))
        self.rows, self._place = ordered, {id(row): place for place, row in enumerate(ordered)}
        self.mode = mode_of([row.request.sampling for row in ordered if row.is_slow], self.widths.top)
        self._stale = True
        return grown

    def write_tables(self, rows: Iterable[Row]) -> None:
        """The blocks of rows that have grown."""
        for row in rows:
            self._write_table(self.place(row), row)
            self._stale = True

    def push(self) -> None:
        """To the device what it does not know yet; the next window begins."""
        self.step.zero_()
        if not self._stale:
            return
        for mirror in (self.ints, self.floats, self.tables, self.ends, self.beginnings, self.banned):
            mirror.push()
        if self.mode.looks_back:
            for place, row in enumerate(self.rows[: self.mode.slow]):
                self.history.host[place, : len(row.request.ids) + len(row.tokens)] = [*row.request.ids, *row.tokens]
            self.history.push(slice(self.mode.slow))
        self._stale = False

    def pull(self) -> None:
        """What the window made; one wait for the device."""
        self.ints.pull(slice(len(MOVING)))
        for mirror in (self.tokens, self.log_probs, *((self.top_ids, self.top_values) if self.mode.top else ())):
            mirror.pull()
        if self.where.type == "cuda":
            torch.cuda.current_stream(self.where).synchronize()

    def column(self, name: str) -> np.ndarray:
        """[places] on the host."""
        return self.ints.host[INTS.index(name)] if name in INTS else self.floats.host[FLOATS.index(name)]

    def tensor(self, name: str, rows: int) -> Tensor:
        """[rows] on the device."""
        pool, names = (self.ints, INTS) if name in INTS else (self.floats, FLOATS)
        return pool.device[names.index(name), :rows]

    def quiet(self) -> None:
        """No row is active on the device, so that a step changes nothing; `push` ends it."""
        self.ints.device[INTS.index("active")].zero_()
        self.step.zero_()
        self._stale = True

    def _by_place(self) -> list[tuple[Mirror, int]]:
        rest = (self.tables, self.ends, self.beginnings, self.banned)
        return [(self.ints, 1), (self.floats, 1), *((mirror, 0) for mirror in rest)]

    def _blank(self, places: np.ndarray) -> None:
        for name, value in NEUTRAL.items():
            self.column(name)[places] = value

    def _write_table(self, place: int, row: Row) -> None:
        self.tables.host[place, : len(row.table)] = row.table
        self.held[place] = len(row.table)

    def _write(self, place: int, row: Row, ends: Collection[int]) -> None:
        sampling = row.request.sampling
        values = {
            "token": row.tokens[-1],
            "length": row.cached,
            "made": len(row.tokens),
            "active": 1,
            "limit": sampling.max_tokens,
            "seed": row.request.seed,
            "greedy": int(sampling.greedy),
            "top_k": sampling.top_k,
            "min_tokens": sampling.min_tokens,
            "prompt": len(row.request.ids),
            "temperature": 1.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition": sampling.repetition_penalty,
            "frequency": sampling.frequency_penalty,
            "presence": sampling.presence_penalty,
        }
        self.ints.host[:, place] = [values[name] for name in INTS]
        self.floats.host[:, place] = [values[name] for name in FLOATS]
        self._write_table(place, row)
        self.ends.host[place, : len(ends)] = list(ends)
        for number, (*beginning, last) in enumerate(sampling.bad_words):
            self.banned.host[place, number] = last
            self.beginnings.host[place, number, : len(beginning)] = beginning[::-1]


def mode_of(slow: Sequence[Sampling], top: int) -> Mode:
    """Of the rows that need more than a temperature; their number rounded up, so that few graphs serve all."""
    if not slow:
        return PLAIN
    return Mode(
        _wide(1, len(slow)),
        any(sampling.restricts for sampling in slow),
        any(sampling.looks_back for sampling in slow),
        top if any(sampling.logprobs for sampling in slow) else 0,
    )


def _wide(room: int, needed: int) -> int:
    """As it is, or the next power of two."""
    return room if needed <= room else 1 << (needed - 1).bit_length()
