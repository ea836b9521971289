"""DraftPolicy: how many drafts to verify in a decode step, from measured step times and chances of acceptance.

It decides about speed only: whatever it chooses, the sampled tokens are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.rollout.engines.builtin.invariant import padding

MEMORY = 0.95  # weight of older step times relative to the next
MIN_STEPS = 8  # measured before the first draft
MIN_GAIN = 1.05  # drafts must promise at least this many times as many tokens per second
OUTLIER = 3.0  # a step that took longer than this many times its prediction counts as that long
MIN_SPREAD = 1e-3  # squared coefficient of variation of the rows from which a slope is fitted
MAX_PAUSE = 64  # steps without a look at drafts, after looks that did not pay


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

    def predict(self, rows: int) -> float:
        return self.overhead + self.per_row * rows


class DraftPolicy:
    """`row_multiple`: a step's rows are padded to a multiple of this; drafts in place of padding cost nothing."""

    def __init__(self, row_multiple: int) -> None:
        self.row_multiple = row_multiple
        self.times = StepTimes()
        self.pause = 0  # steps without drafts after each look at them; 0 while looks pay
        self._steps_left = 0

    def wants_drafts(self) -> bool:
        """Whether to look for drafts in this step."""
        if self.times.num_steps < MIN_STEPS:
            return False
        self._steps_left -= 1
        return self._steps_left < 0

    def choose(self, chances: Sequence[Sequence[float]], seconds: float) -> list[int]:
        """How many drafts of each sequence to verify: as many as promise the most tokens per second.

        `chances` of acceptance of each sequence's drafts, falling; `seconds`: how long it took to find these drafts.
        """
        num_rows = len(chances)
        likeliest = sorted(
            ((chance, number) for number, row in enumerate(chances) for chance in row), key=lambda entry: -entry[0]
        )
        plain = num_rows / self._seconds(num_rows)
        best, count, expected, verified = MIN_GAIN * plain, 0, float(num_rows), float(num_rows)
        # Where nothing has been measured, step by step: at most twice the rows of any step so far.
        most = max(2 * self.times.most_rows, self.row_multiple) - num_rows
        for number, (chance, _) in enumerate(likeliest[: max(0, most)], 1):
            expected += chance
            rate = expected / self._seconds(num_rows + number)
            if rate > best:
                best, count, verified = rate, number, expected
        self._look_again(verified / (self._seconds(num_rows + count) + seconds) > plain)
        counts = [0] * num_rows
        for _, number in likeliest[:count]:
            counts[number] += 1
        return counts

    def _look_again(self, paid: bool) -> None:
        """In the next step if this look paid, else later and later."""
        self.pause = 0 if paid else min(MAX_PAUSE, max(1, 2 * self.pause))
        self._steps_left = self.pause

    def _seconds(self, rows: int) -> float:
        return max(1e-9, self.times.predict(rows + padding(rows, self.row_multiple)))

    def add_step(self, rows: int, seconds: float) -> None:
        self.times.add(rows + padding(rows, self.row_multiple), seconds)
