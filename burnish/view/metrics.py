"""The metrics of a run: metrics.jsonl, read as it grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.view.json_lines import GrowingFile

MAX_NAMES = 5000  # of metrics
MAX_POINTS = 1500  # of one curve that is shown: more than a screen has columns


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


def elapsed_times(steps: Mapping[int, Any], timeline: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Seconds since the start at which each step ended: recorded, else the sum of its steps' seconds."""
    recorded = {step: line["time"] for step, line in timeline.items() if line["time"] is not None}
    if recorded:
        starts = [span[1] for line in timeline.values() for span in line["spans"]]
        first = min([*starts, *recorded.values()])
        return {step: recorded[step] - first if step in recorded else 0.0 for step in steps}
    total, times = 0.0, {}
    for step in sorted(steps):
        total += steps[step].get("timing_s/step", 0.0) + steps[step].get("timing_s/testing", 0.0)
        times[step] = total
    return times


def thinned(points: list[tuple[int, float]], limit: int = MAX_POINTS) -> list[tuple[int, float]]:
    """At most about `limit` points: the smallest and the largest of every stretch, so that spikes stay visible."""
    if len(points) <= limit:
        return points
    size = math.ceil(len(points) * 2 / limit)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]
