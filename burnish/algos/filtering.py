"""Dynamic sampling (DAPO, arXiv 2503.14476): which groups have a learning signal, and how many prompts to start."""

from __future__ import annotations

from collections.abc import Sequence


def differs(values: Sequence[float]) -> bool:
    """Whether a group's values differ; if not, all its group-relative advantages are 0. A group of one passes."""
    return len(values) == 1 or max(values) > min(values)


def within(values: Sequence[float], low: float, high: float) -> bool:
    """Whether low < mean < high. With scores 0 and 1 and the range (0, 1), the same as `differs`."""
    return low < sum(values) / len(values) < high


def num_to_open(wanted: int, kept: int, open_now: int, in_flight: int) -> int:
    """How many prompts to start, so that `in_flight` are open, but no more than may still be needed."""
    return max(0, min(in_flight, wanted - kept) - open_now)
