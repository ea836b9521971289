"""Partition rows: balanced shares for ranks, and micro-batches under a token budget. Plain integers, no tensors."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def workload(length: int) -> int:
    """Estimated training cost of a row: linear layers, plus quadratic attention."""
    return 24_576 * length + length * length


def balanced_partitions(workloads: Sequence[int], k: int, equal_size: bool = False) -> list[list[int]]:
    """Split rows into k parts of nearly equal load (Karmarkar-Karp differencing); returns row numbers, heaviest first.

    With `equal_size` every part has the same number of rows; the number of rows must be a multiple of k.
    """
    if k < 1 or len(workloads) < k:
        raise ValueError(f"cannot split {len(workloads)} rows into {k} parts")
    if equal_size and len(workloads) % k:
        raise ValueError(f"{len(workloads)} rows cannot be split into {k} parts of equal size")
    light_first = sorted((load, row) for row, load in enumerate(workloads))
    rows: list[_Part] = [(load, 1, [(row, load)]) for load, row in light_first]
    size = k if equal_size else 1
    empty: list[_Part] = [(0, 0, [])] * (k - size)
    heap = [_Split(rows[start : start + size] + empty) for start in range(0, len(rows), size)]
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, heapq.heappop(heap).joined(heapq.heappop(heap)))
    return [sorted(row for row, _ in rows) for _, _, rows in heap[0].parts]


def token_budget_batches(lengths: Sequence[int], budget: int, at_least: int = 1) -> list[list[int]]:
    """Split rows into micro-batches of at most `budget` tokens and nearly equal load; light ones come first and last.

    A row longer than the budget gets its own micro-batch. `at_least` is the number of micro-batches of another rank,
    which this rank matches as far as it has rows.
    """
    if not lengths:
        return []
    if budget < 1:
        raise ValueError(f"the token budget must be positive, not {budget}")
    count = min(len(lengths), max(at_least, -(-sum(lengths) // budget), 1))
    batches = balanced_partitions(lengths, count)
    if not _fits(batches, lengths, budget):
        # Balanced parts may exceed the budget; first fit gives a number of batches that suffices.
        first_fit = _first_fit(lengths, budget)
        batches = balanced_partitions(lengths, max(count, len(first_fit)))
        if not _fits(batches, lengths, budget):
            batches = first_fit
    heavy_first = sorted(batches, key=lambda rows: sum(lengths[row] for row in rows), reverse=True)
    return heavy_first[::2][::-1] + heavy_first[1::2]


# A part: (load, number of rows, [(row, load), ...]), compared in that order.
_Part = tuple[int, int, list[tuple[int, int]]]


class _Split:
    """k parts, heaviest first. The heap yields the split with the largest load difference first."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = sorted(parts, reverse=True)
        self.difference = self.parts[0][0] - self.parts[-1][0]

    def joined(self, other: _Split) -> _Split:
        """Combine heaviest with lightest parts."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        return _Split([(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs])

    def __lt__(self, other: _Split) -> bool:
        if self.difference != other.difference:
            return self.difference > other.difference
        return self.parts[0] > other.parts[0]


def _fits(batches: list[list[int]], lengths: Sequence[int], budget: int) -> bool:
    return all(len(rows) == 1 or sum(lengths[row] for row in rows) <= budget for rows in batches)


def _first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Put each row, longest first, into the first batch with enough budget left."""
    batches: list[list[int]] = []
    remaining: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place = next((i for i, left in enumerate(remaining) if left >= lengths[row]), len(batches))
        if place == len(batches):
            batches.append([])
            remaining.append(budget)
        batches[place].append(row)
        remaining[place] -= lengths[row]
    return [sorted(rows) for rows in batches]
