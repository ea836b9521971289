"""BlockPool: which blocks of the KV cache are free, and how many rows read each."""

from __future__ import annotations

import heapq

from burnish.sizing import CACHE_BLOCK as BLOCK


class OutOfBlocksError(Exception):
    """No free block; the scheduler answers by preempting the newest row."""


class BlockPool:
    """Hands out the lowest free block first, so that the blocks in use stay one dense range read in place."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._readers = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def lowest_free(self) -> int:
        """The block that `take` would give; num_blocks if there is none."""
        return self._free[0] if self._free else self.num_blocks

    def take(self) -> int:
        if not self._free:
            raise OutOfBlocksError
        block = heapq.heappop(self._free)
        self._readers[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more row reads this block."""
        self._readers[block] += 1

    def drop(self, block: int) -> None:
        """One row less reads it; the last one frees it."""
        self._readers[block] -= 1
        if self._readers[block] == 0:
            heapq.heappush(self._free, block)

    def is_shared(self, block: int) -> bool:
        return self._readers[block] > 1


def blocks_for(tokens: int, block: int = BLOCK) -> int:
    return -(-tokens // block)
