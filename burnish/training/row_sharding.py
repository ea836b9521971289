"""RowSharding: which rows of a batch each data rank runs, as numbers that any process can compute for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.algos.batches import balanced_partitions, token_budget_batches, workload

if TYPE_CHECKING:
    from burnish.training.packing import MicroBatchSize


@dataclass(frozen=True)
class RowSharding:
    """The sizes of a layout that decide it. Ranks of equal data rank (sequence, tensor, stages) run the same rows."""

    data_size: int = 1
    sequence_size: int = 1
    balance: bool = True  # shard rows by estimated cost instead of by order

    def micro_batches(self, lengths: Tensor, size: MicroBatchSize) -> list[list[list[int]]]:
        """Row numbers of the micro-batches of each data rank.

        All ranks get equally many, because they run collectives together; some may be empty.
        """
        size = size.times(self.sequence_size)
        if self.data_size == 1:
            return [size.split(lengths)]
        shards = self._shard_rows(lengths.tolist())
        micro_batches = [_split_shard(rows, lengths, size) for rows in shards]
        count = max(map(len, micro_batches))
        if size.tokens is not None:  # smaller micro-batches are better than idle ranks
            micro_batches = [_split_shard(rows, lengths, size, at_least=count) for rows in shards]
            count = max(map(len, micro_batches))
        return [local + [[]] * (count - len(local)) for local in micro_batches]

    def _shard_rows(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row numbers of each data rank."""
        num_shards = min(self.data_size, len(lengths))
        if self.balance:
            shards = balanced_partitions([workload(length) for length in lengths], num_shards)
        else:
            each = -(-len(lengths) // num_shards)
            starts = range(0, each * num_shards, each)
            shards = [list(range(start, min(start + each, len(lengths)))) for start in starts]
        return shards + [[]] * (self.data_size - len(shards))


def _split_shard(rows: list[int], lengths: Tensor, size: MicroBatchSize, at_least: int = 1) -> list[list[int]]:
    """Micro-batches of one data rank's rows."""
    if not rows:
        return []
    local = lengths[rows]
    if size.tokens is not None:
        micro_batches = token_budget_batches(local.tolist(), size.tokens, at_least=at_least)
    else:
        micro_batches = size.split(local)
    return [[rows[index] for index in micro_batch] for micro_batch in micro_batches]
