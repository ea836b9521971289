"""The metrics of a run: metrics.jsonl, read as it grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.view.json_lines import GrowingFile

MAX_NAMES = 5000  # of metrics


class Metrics:
    """Steps and their metrics. Non-finite values are kept as they are."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.names: set[str] = set()
        self._file = GrowingFile(path)

    def refresh(self) -> None:
        """Read what was added since the last call."""
        replaced, lines = self._file.read()
        if replaced:
            self.steps, self.names = {}, set()
        for line in lines:
            step, data = line.get("step"), line.get("data")
            if type(step) is not int or not isinstance(data, Mapping):
                continue
            values = {name: value for name, raw in data.items() if (value := number(raw)) is not None}
            self.names.update(name for name in values if len(self.names) < MAX_NAMES or name in self.names)
            self.steps[step] = self.steps.get(step, {}) | values

    @property
    def last_step(self) -> int:
        """The last step with metrics; 0 if there is none."""
        return max(self.steps, default=0)

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(step, value) in the order of steps."""
        return [(step, values[name]) for step, values in sorted(self.steps.items()) if name in values]

    def latest(self, name: str) -> float | None:
        return next(
            (self.steps[step][name] for step in sorted(self.steps, reverse=True) if name in self.steps[step]), None
        )


def number(value: Any) -> float | None:
    """A metric's value: a number, or one of the strings that stand for non-finite ones."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e308 or isinstance(value, float) else math.inf
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None
