"""Oversampling: of the samples of a step, only the shortest are kept, and the others stop as early as possible.

What is short is counted in sampled tokens and not in seconds, so that the same samples are kept whatever the engine,
the tools or the machine were busy with.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any


class Shortest:
    """Samples that are kept: the `num_kept` with the fewest sampled tokens, the earlier one of two equal ones."""

    def __init__(self, num_kept: int) -> None:
        self.num_kept = num_kept
        self.max_tokens: int | None = None  # sampled tokens that a sample may still be kept with; None: any number
        self.finished: dict[int, int] = {}  # sampled tokens by sample
        self.dropped: set[asyncio.Task[Any]] = set()

    def finish(self, sample: int, num_tokens: int, abort_others: Callable[[], None]) -> None:
        """A sample has ended. As soon as enough have, the others go on only as far as they could still be kept."""
        self.finished[sample] = num_tokens
        if len(self.finished) < self.num_kept:
            return
        first = self.max_tokens is None
        self.max_tokens = heapq.nsmallest(self.num_kept, self.finished.values())[-1]
        if first:
            abort_others()

    def drop(self, task: asyncio.Task[Any]) -> None:
        """A running sample is too long: cancel it."""
        self.dropped.add(task)
        task.cancel()

    def kept(self) -> set[int]:
        """Once every sample has ended or was dropped."""
        return set(heapq.nsmallest(self.num_kept, self.finished, key=lambda sample: (self.finished[sample], sample)))


def num_kept(num_samples: int, rate: float) -> int:
    """How many samples of a step are kept: as in verl, but at least one."""
    return max(1, int(num_samples * (1 - rate) + 1e-9))
