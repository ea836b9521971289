"""DraftPolicy: how many drafts to verify in a decode step, from measured step times and chances of acceptance.

It decides about speed only: whatever it chooses, the sampled tokens are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from burnish.rollout.engines.builtin.draft_index import MIN_CHANCE
from burnish.rollout.engines.builtin.invariant import padding

MEMORY = 0.95  # weight of older step times relative to the next
MIN_STEPS = 8  # measured before the first draft
MIN_GAIN = 1.05  # drafts must promise at least this many times as many tokens per second
OUTLIER = 3.0  # a step that took longer than this many times its prediction counts as that long
MIN_SPREAD = 1e-3  # squared coefficient of variation of the rows from which a slope is fitted
MIN_PROFIT = 1.02  # times as many tokens per second, the time of finding the drafts included, or a look has not paid
MAX_LOSS = 0.01  # time for looks that do not pay, relative to all steps
MAX_BALANCE = 16.0  # steps whose time is at stake: gains and losses beyond are forgotten
LEAST_SECONDS = 1e-9

Rows = TypeVar("Rows", int, np.ndarray)


class StepTimes:
    """Seconds of a decode step as a linear function of its rows, fitted to recent steps."""

    def __init__(self) -> None:
        self.num_steps = self.most_rows = 0
        self.overhead = self.per_row = 0.0
        # Weighted sums of 1, rows, seconds, rows^2 and rows * seconds.
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, rows: int, seconds: float) -> None:
        if self.num_steps >= MIN_STEPS:
            seconds = min(seconds, OUTLIER * self.predict(rows))
        self.num_steps += 1
        self.most_rows = max(rows, self.most_rows)
        self._count = count = MEMORY * self._count + 1.0
        self._x = x = MEMORY * self._x + rows
        self._y = y = MEMORY * self._y + seconds
        self._xx = MEMORY * self._xx + rows * rows
        self._xy = MEMORY * self._xy + rows * seconds
        spread = count * self._xx - x * x
        if spread > MIN_SPREAD * x * x:  # else the steps say nothing about the slope, and the last one stays
            self.per_row = max(0.0, (count * self._xy - x * y) / spread)
        self.per_row = min(self.per_row, y / x)  # no step takes less than no time
        self.overhead = (y - self.per_row * x) / count

    def predict(self, rows: Rows) -> Rows | float:
        return self.overhead + self.per_row * rows


class DraftPolicy:
    """`row_multiple`: a step's rows are padded to a multiple of this; drafts in place of padding cost nothing.

    What drafts have saved and cost, index included, is booked in `balance`, in units of a step without drafts. Looks at
    drafts that do not pay are covered by earlier gains and by MAX_LOSS of each step; without cover there are none.
    """

    def __init__(self, row_multiple: int) -> None:
        self.row_multiple = row_multiple
        self.times = StepTimes()
        self.pays = False  # the last look at drafts promised a gain
        self.balance = 0.0
        self.least_chance = MIN_CHANCE  # of drafts that are worth finding

    def wants_drafts(self) -> bool:
        """Whether to look for drafts in this step."""
        return self.times.num_steps >= MIN_STEPS and (self.pays or self.balance >= 0.0)

    def choose(self, chances: Sequence[Sequence[float]], seconds: float) -> list[int]:
        """How many drafts of each sequence to verify: as many as promise the most tokens per second.

        `chances` of acceptance of each sequence's drafts, falling; `seconds`: how long it took to find these drafts.
        """
        num_rows = len(chances)
        # Where nothing has been measured, step by step: at most twice the rows of any step so far.
        most = max(0, max(2 * self.times.most_rows, self.row_multiple) - num_rows)
        number = np.repeat(np.arange(num_rows), [len(row) for row in chances])
        flat = np.fromiter(itertools.chain.from_iterable(chances), float, len(number))
        likeliest = np.argsort(-flat, kind="stable")[:most]
        # Of steps with 0, 1, 2, ... drafts: expected tokens, seconds, tokens per second.
        tokens = num_rows + np.append(0.0, flat[likeliest].cumsum())
        rows = num_rows + np.arange(len(tokens))
        times = np.maximum(LEAST_SECONDS, self.times.predict(rows + -rows % self.row_multiple))
        rates = tokens / times
        best = int(rates.argmax())
        count = best if rates[best] > MIN_GAIN * rates[0] else 0
        chosen = likeliest[:count]
        self.pays = bool(tokens[count] > MIN_PROFIT * rates[0] * (times[count] + seconds))
        self.least_chance = max(MIN_CHANCE, 0.5 * flat[chosen].min().item()) if 0 < count < len(flat) else MIN_CHANCE
        return np.bincount(number[chosen], minlength=num_rows).tolist()

    def add_step(
        self, num_sequences: int, rows: int, tokens: int, seconds: float, drafting: float = 0.0, steps: int = 1
    ) -> None:
        """More rows than sequences: drafts were verified. `drafting`: seconds of looking for them."""
        padded = [count + padding(count, self.row_multiple) for count in (num_sequences, rows)]
        plain = max(LEAST_SECONDS, self.times.predict(padded[0]))
        verified = rows > num_sequences
        limit = OUTLIER * self._times(verified).predict(padded[1])
        self._times(verified).add(padded[1], seconds / steps)
        gain = MAX_LOSS * steps - drafting / plain
        if verified:
            gain += tokens / num_sequences - (min(seconds, limit) if limit > 0.0 else seconds) / plain
        self.balance = max(-MAX_BALANCE, min(MAX_BALANCE, self.balance + gain))
        if self.balance == -MAX_BALANCE:
            self.pays = False  # whatever it promises

    def _times(self, verified: bool) -> StepTimes:
        return self.times


class LoopPolicy(DraftPolicy):
    """For the device loop, whose steps verify drafts in fixed shapes: so many rows of every sequence.

    Their seconds are fitted apart from those of windows without drafts, which synchronize with the host less often.
    """

    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__(row_multiple=1)
        self.depths = depths
        self.verify_times = StepTimes()

    def choose(self, chances: Sequence[Sequence[float]], seconds: float) -> list[int]:
        num_rows = len(chances)
        plain = num_rows / max(LEAST_SECONDS, self.times.predict(num_rows))
        rates = {0: plain}
        for depth in self.depths:
            tokens = num_rows + sum(sum(row[:depth]) for row in chances)
            rates[depth] = tokens / self._verify_seconds(num_rows * (1 + depth))
        best = max(rates, key=lambda depth: rates[depth])
        if rates[best] <= MIN_GAIN * plain:
            self.pays = False
            return [0] * num_rows
        tokens = rates[best] * self._verify_seconds(num_rows * (1 + best))
        self.pays = tokens > MIN_PROFIT * plain * (tokens / rates[best] + seconds)
        return [min(best, len(row)) for row in chances]

    def _verify_seconds(self, rows: int) -> float:
        """As for as many sequences without drafts, until one such step was measured."""
        times = self.verify_times if self.verify_times.num_steps else self.times
        return max(LEAST_SECONDS, times.predict(rows))

    def _times(self, verified: bool) -> StepTimes:
        return self.verify_times if verified else self.times
