"""RowSharding: which rows of a batch each data rank runs, as numbers that any process can compute for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algos.batches import balanced_partitions, token_budget_batches, workload

if TYPE_CHECKING:
    from burnish.training.packing import MicroBatchSize, RowSizes, Unit

UNITS_PER_RANK = 4  # at least, where rows of one prompt stay together: fewer would leave ranks with unequal work


@dataclass(frozen=True)
class RowSharding:
    """The sizes of a layout that decide it. Ranks of equal data rank (sequence, tensor, stages) run the same rows."""

    data_size: int = 1
    sequence_size: int = 1
    balance: bool = True  # shard rows by estimated cost instead of by order

    def micro_batches(self, sizes: RowSizes, size: MicroBatchSize) -> list[list[list[int]]]:
        """Row numbers of the micro-batches of each data rank.

        All ranks get equally many, because they run collectives together; some may be empty.
        """
        size = size.times(self.sequence_size)
        units = sizes.units(size.tokens, 1 if self.data_size == 1 else UNITS_PER_RANK * self.data_size)
        if self.data_size == 1:
            return [_split_shard(units, size)]
        shards = self._shard(units)
        micro_batches = [_split_shard(shard, size) for shard in shards]
        count = max(map(len, micro_batches))
        if size.tokens is not None:  # smaller micro-batches are better than idle ranks
            micro_batches = [_split_shard(shard, size, at_least=count) for shard in shards]
            count = max(map(len, micro_batches))
        return [local + [[]] * (count - len(local)) for local in micro_batches]

    def _shard(self, units: Sequence[Unit]) -> list[list[Unit]]:
        """The units of each data rank."""
        num_shards = min(self.data_size, len(units))
        if self.balance:
            parts = balanced_partitions([workload(unit.tokens) for unit in units], num_shards)
            shards = [[units[number] for number in part] for part in parts]
        else:
            each = -(-len(units) // num_shards)
            shards = [list(units[start : start + each]) for start in range(0, each * num_shards, each)]
        return shards + [[]] * (self.data_size - len(shards))


def _split_shard(units: Sequence[Unit], size: MicroBatchSize, at_least: int = 1) -> list[list[int]]:
    """Micro-batches of one data rank's rows."""
    if size.tokens is not None:
        parts = token_budget_batches([unit.tokens for unit in units], size.tokens, at_least=at_least)
        return [[row for number in part for row in units[number].rows] for part in parts]
    assert size.rows is not None
    rows = [row for unit in units for row in unit.rows]
    return [rows[start : start + size.rows] for start in range(0, len(rows), size.rows)]
