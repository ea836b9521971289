"""Shards of a batch: the rows that one data rank runs, and in which order. Ranks need no row of others.

A role takes a whole batch, and chooses this rank's rows itself, or a shard that was cut elsewhere (the controller does,
so that only these rows are sent). The choice and the results are the same. Of a whole batch every rank returns the
results of all; of a shard, those of its own rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from burnish.algos.aggregate import Totals
from burnish.batch import Batch, Ragged
from burnish.training.backend import MicroBatch
from burnish.training.packing import MicroBatchSize
from burnish.training.row_sharding import RowSharding


@dataclass(frozen=True)
class Shard:
    """Rows of a batch, in its order; read like a batch."""

    batch: Batch

    def __contains__(self, name: str) -> bool:
        return name in self.batch

    def __getitem__(self, name: str) -> Any:
        return self.batch[name]


@dataclass(frozen=True)
class ForwardShard(Shard):
    """A pass without gradients. Micro-batches are numbers of rows in `batch`."""

    micro_batches: list[list[int]]
    dummy: int = 0  # the row that an empty micro-batch runs

    def select(self) -> list[MicroBatch]:
        return [MicroBatch.select(self.batch, rows, self.dummy) for rows in self.micro_batches]


@dataclass(frozen=True)
class MiniBatch:
    """One data rank's part of an optimizer update."""

    micro_batches: list[list[int]]
    dummy: int  # the row that an empty micro-batch runs
    count: Totals  # of all ranks
    num_replicas: int = 1  # data ranks that run these same rows

    def select(self, batch: Batch) -> list[MicroBatch]:
        micro_batches = [MicroBatch.select(batch, rows, self.dummy) for rows in self.micro_batches]
        return [replace(one, num_replicas=self.num_replicas) for one in micro_batches]


@dataclass(frozen=True)
class UpdateShard(Shard):
    """All optimizer updates of a step: the mini-batches of each epoch."""

    epochs: list[list[MiniBatch]]


@dataclass(frozen=True)
class Cut:
    """A batch cut for all data ranks; `rows` are those whose results each of them has, numbered in the whole batch."""

    shards: list[ForwardShard] | list[UpdateShard]
    rows: list[list[int]]

    def join(self, parts: Sequence[dict[str, Ragged]]) -> dict[str, Ragged]:
        """Columns of the whole batch from those of each data rank, which are in the order of `rows`."""
        present = [(rows, part) for rows, part in zip(self.rows, parts, strict=True) if part]
        order = torch.tensor([row for rows, _ in present for row in rows], dtype=torch.int64)
        back = torch.argsort(order)
        joined = {name: [part[name] for _, part in present] for name in (present[0][1] if present else ())}
        return {
            name: Ragged(
                torch.cat([part.flat for part in columns]), torch.cat([part.lengths for part in columns])
            ).select(back)
            for name, columns in joined.items()
        }


def cut_forward(batch: Batch, size: MicroBatchSize, sharding: RowSharding) -> Cut:
    """For a pass without gradients, on every data rank."""
    shards, results = [], []
    for micro_batches in sharding.micro_batches(size.sizes(batch), size):
        rows, local = _needed([(micro_batches, 0)])
        numbers = [[local[row] for row in micro_batch] for micro_batch in micro_batches]
        shards.append(ForwardShard(batch.select(rows), numbers, local.get(0, 0)))
        results.append(sorted(itertools.chain(*micro_batches)))
    return Cut(shards, results)


def cut_update(batch: Batch, schedule: Sequence[Sequence[Sequence[MiniBatch]]], *, replicated: bool) -> Cut:
    """For the updates that `schedule` names: [epoch][update][data rank]. `replicated`: all ranks run all rows."""
    shards, results = [], []
    num_ranks = len(schedule[0][0])
    for rank in range(1 if replicated else num_ranks):
        epochs = [[update[rank] for update in epoch] for epoch in schedule]
        rows, local = _needed([(mini.micro_batches, mini.dummy) for mini in itertools.chain(*epochs)])
        renumbered = [[_renumber(mini, local) for mini in epoch] for epoch in epochs]
        shards.append(UpdateShard(batch.select(rows), renumbered))
        first = (row for mini in epochs[0] for micro_batch in mini.micro_batches for row in micro_batch)
        results.append(sorted(first))
    if replicated:
        return Cut(shards * num_ranks, results + [[]] * (num_ranks - 1))
    return Cut(shards, results)


def _renumber(mini: MiniBatch, local: dict[int, int]) -> MiniBatch:
    numbers = [[local[row] for row in rows] for rows in mini.micro_batches]
    return replace(mini, micro_batches=numbers, dummy=local.get(mini.dummy, 0))


def _needed(passes: Iterable[tuple[list[list[int]], int]]) -> tuple[list[int], dict[int, int]]:
    """The rows that these micro-batches run, in order, and the number of each among them."""
    needed: set[int] = set()
    for micro_batches, dummy in passes:
        needed.update(*micro_batches)
        if not all(micro_batches):
            needed.add(dummy)
    rows = sorted(needed)
    return rows, {row: number for number, row in enumerate(rows)}
