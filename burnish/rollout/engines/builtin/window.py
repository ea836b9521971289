"""Window: the tokens that the device makes between two looks of the host; what they start from, what they came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from burnish.rollout.engines.builtin.device_rows import DeviceRows
from burnish.rollout.engines.builtin.rows import Row


class Standing(NamedTuple):
    """[rows] each: where a row stands, by what the device last told. Its lists may lag behind that."""

    place: np.ndarray  # on the device; -1 is new there
    length: np.ndarray  # tokens in the cache
    left: np.ndarray  # tokens that it may still make

    @staticmethod
    def of(rows: Sequence[Row], device: DeviceRows) -> Standing:
        place = np.array([device.place_or(row, -1) for row in rows], dtype=np.int64)
        length, made, limit = (device.column(name)[place] for name in ("length", "made", "limit"))
        left = limit - made
        for number in np.flatnonzero(place < 0).tolist():
            row = rows[number]
            length[number], left[number] = row.cached, row.most - len(row.tokens)
        return Standing(place, length, left)

    @property
    def has_new(self) -> bool:
        return bool((self.place < 0).any())

    def needed(self, steps: int, held: np.ndarray, block: int) -> Iterator[tuple[int, int]]:
        """Numbers of the rows whose blocks do not hold their next tokens, and how many tokens those must hold.

        `held`: blocks of every place; a new row may hold any.
        """
        needed = self.length + np.minimum(steps, self.left)
        short = np.flatnonzero((needed > held[self.place] * block) | (self.place < 0))
        return zip(short.tolist(), needed[short].tolist(), strict=True)


class Made(NamedTuple):
    """What a window made for one row, and whether the device found it over."""

    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]] | None
    over: bool


class Window:
    """What one window has made; good until the next one lands, also when the rows have been arranged anew.

    Read row by row: a thousand small lists at once would wake the garbage collector.
    """

    def __init__(self, device: DeviceRows, before: np.ndarray) -> None:
        self.rows = device.rows  # each at its place
        here = slice(len(self.rows))
        self.made: list[int] = (device.column("made") - before)[here].tolist()
        self.active: list[int] = device.column("active")[here].tolist()
        self._tokens, self._log_probs = device.tokens.host, device.log_probs.host
        self._top = (device.top_ids.host, device.top_values.host) if device.mode.top else None

    @property
    def over(self) -> list[Row]:
        return [row for row, active in zip(self.rows, self.active, strict=True) if not active]

    def __iter__(self) -> Iterator[tuple[Row, Made]]:
        for place, (row, made, active) in enumerate(zip(self.rows, self.made, self.active, strict=True)):
            tokens, log_probs = self._tokens[place, :made].tolist(), self._log_probs[place, :made].tolist()
            top = None if self._top is None else self._likeliest(place, made, row.request.sampling.logprobs or 0)
            yield row, Made(tokens, log_probs, top, not active)

    def _likeliest(self, place: int, made: int, count: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens beside each that was made."""
        ids, values = (numbers[place, :made, :count].tolist() for numbers in self._top)
        return [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
