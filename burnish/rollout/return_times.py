"""ReturnTimes: how long conversations are away, by the tool, user or environment that they wait for."""

from __future__ import annotations

NEWEST = 0.05  # weight of the newest duration in a running mean, once there are enough of them


class ReturnTimes:
    """Running means of durations by name, and of all of them for names that are new."""

    def __init__(self) -> None:
        self._means: dict[str | None, tuple[int, float]] = {}  # count and mean; None: of all names

    def add(self, name: str, seconds: float) -> None:
        for key in (name, None):
            count, mean = self._means.get(key, (0, 0.0))
            self._means[key] = count + 1, mean + (seconds - mean) * max(NEWEST, 1 / (count + 1))

    def expected(self, name: str) -> float | None:
        """Seconds that it will probably take; None if nothing is known."""
        entry = self._means.get(name) or self._means.get(None)
        return None if entry is None else entry[1]
