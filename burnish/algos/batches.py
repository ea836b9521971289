"""Which rows go together: even shares for ranks, and micro-batches under a token budget. Plain integers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def workload(length: int) -> int:
    """What training on a row of this length costs: the linear layers, and attention's square."""
    return 24_576 * length + length * length


def balanced_partitions(workloads: Sequence[int], k: int, equal_size: bool = False) -> list[list[int]]:
    """Row numbers in k parts of nearly equal load, by Karmarkar and Karp's largest differencing; heaviest part first.

    With `equal_size` every part has the same number of rows, of which there must then be a multiple of k.
    """
    if k < 1 or len(workloads) < k:
        raise ValueError(f"cannot cut {len(workloads)} rows into {k} parts")
    if equal_size and len(workloads) % k:
        raise ValueError(f"{len(workloads)} rows do not make {k} parts of the same size")
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
    """Row numbers in micro-batches of at most `budget` tokens, of nearly equal load; light ones first and last.

    A row longer than the budget has a micro-batch of its own. `at_least` asks for as many micro-batches as another rank
    makes, as far as there are rows.
    """
    if not lengths:
        return []
    if budget < 1:
        raise ValueError(f"a token budget of {budget} holds nothing")
    count = min(len(lengths), max(at_least, -(-sum(lengths) // budget), 1))
    batches = balanced_partitions(lengths, count)
    if not _fits(batches, lengths, budget):
        # Even loads may need more batches than the sum suggests; first fit finds a number that is enough.
        first_fit = _first_fit(lengths, budget)
        batches = balanced_partitions(lengths, max(count, len(first_fit)))
        if not _fits(batches, lengths, budget):
            batches = first_fit
    heavy_first = sorted(batches, key=lambda rows: sum(lengths[row] for row in rows), reverse=True)
    return heavy_first[::2][::-1] + heavy_first[1::2]


def interleaved(rows: Sequence[int], workloads: Sequence[int]) -> list[int]:
    """A rank's rows ordered light to heavy and back to light, so that equal cuts of all ranks cost alike."""
    light_first = sorted(rows, key=lambda row: (workloads[row], row))
    return light_first[::2] + light_first[1::2][::-1]


# Rows that go together: (load, number of rows, [(row, its load), ...]), compared in that order.
_Part = tuple[int, int, list[tuple[int, int]]]


class _Split:
    """k parts, heaviest first. The one with the widest spread comes first from the heap."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = sorted(parts, reverse=True)
        self.difference = self.parts[0][0] - self.parts[-1][0]

    def joined(self, other: _Split) -> _Split:
        """Heaviest with lightest: that evens the loads out."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        return _Split([(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs])

    def __lt__(self, other: _Split) -> bool:
        if self.difference != other.difference:
            return self.difference > other.difference
        return self.parts[0] > other.parts[0]


def _fits(batches: list[list[int]], lengths: Sequence[int], budget: int) -> bool:
    return all(len(rows) == 1 or sum(lengths[row] for row in rows) <= budget for rows in batches)


def _first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Longest row first, each into the first batch with room."""
    batches: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place = next((i for i, left in enumerate(room) if left >= lengths[row]), len(batches))
        if place == len(batches):
            batches.append([])
            room.append(budget)
        batches[place].append(row)
        room[place] -= lengths[row]
    return [sorted(rows) for rows in batches]
