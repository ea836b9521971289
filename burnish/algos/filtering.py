"""Which groups teach something: the decisions of dynamic sampling (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from collections.abc import Sequence


def differs(values: Sequence[float]) -> bool:
    """Do the responses of a group differ? If not, every group-relative advantage is 0. A group of one always counts."""
    return len(values) == 1 or max(values) > min(values)


def within(values: Sequence[float], low: float, high: float) -> bool:
    """Is the group's mean strictly between the two? With scores of 0 and 1 and the range (0, 1), as `differs`."""
    return low < sum(values) / len(values) < high


def num_to_open(wanted: int, kept: int, open_now: int, in_flight: int) -> int:
    """How many prompts to take up now, so that `in_flight` are open but no more than may still be needed."""
    return max(0, min(in_flight, wanted - kept) - open_now)
