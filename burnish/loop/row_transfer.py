"""Rows between the controller and the ranks of a role: a rank is sent those that its data rank runs, and no others.

The controller cuts a batch as the ranks would (training/batch_shard.py), so it does not matter to any number where the
choice is made. Ranks that share rows (sequence, tensor, stages) share one payload, which Ray stores once per machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from burnish.batch import ALONG_RESPONSE, Batch, Ragged
from burnish.distributed.channel import NO_RESULT
from burnish.distributed.worker_group import WorkerGroup
from burnish.loop.media_transfer import COLUMN, MediaStore, sender_of
from burnish.loop.packed_batch import PackedBatch
from burnish.models.model_input import Media
from burnish.training.batch_shard import Cut, ForwardShard, MiniBatch, UpdateShard, cut_forward
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import ParallelContext
from burnish.training.policy import UpdateResult
from burnish.training.protocols import Pending
from burnish.training.row_sharding import RowSharding
from burnish.training.update import UpdatePlan

# Columns of the controller that no model reads; ALONG_RESPONSE are those of single response tokens.
CONTROLLER_COLUMNS = frozenset({"sample", "greedy_responses", "greedy_turn_rewards", "greedy_scores", "weight"})


@dataclass(frozen=True)
class RoleLayout:
    """What decides which rows a rank runs."""

    sharding: RowSharding
    data_rank: int
    forward: MicroBatchSize  # of passes without gradients
    plan: UpdatePlan | None = None  # None for a role that is not trained
    reads: frozenset[str] = frozenset()  # columns that an update reads beside the model's inputs

    @staticmethod
    def of(role: Any) -> RoleLayout:
        parallel: ParallelContext = role.backend.parallel
        forward = role.inference_micro_batch if hasattr(role, "inference_micro_batch") else role.micro_batch
        plan, reads = getattr(role, "plan", None), getattr(role, "update_columns", frozenset())
        return RoleLayout(parallel.sharding, parallel.data_rank, forward, plan, reads)


@dataclass(frozen=True)
class PackedShard:
    """A shard on its way to the ranks of one data rank."""

    batch: PackedBatch
    media: Sequence[Media]  # pictures that one of the ranks does not have yet
    micro_batches: list[list[int]] | None = None
    dummy: int = 0
    epochs: list[list[MiniBatch]] | None = None

    @property
    def nbytes(self) -> int:
        pictures = sum(tensor.nbytes for item in self.media for tensor in item.tensors.values())
        return self.batch.nbytes + pictures

    def unpack(self, store: MediaStore) -> ForwardShard | UpdateShard:
        store.receive(self.media)
        batch = store.restore_batch(self.batch.unpack())
        if self.epochs is not None:
            return UpdateShard(batch, self.epochs)
        assert self.micro_batches is not None
        return ForwardShard(batch, self.micro_batches, self.dummy)


@dataclass(frozen=True)
class PackedResult:
    """What a rank returns: columns of its rows, and numbers that are those of all."""

    columns: PackedBatch
    metrics: dict[str, float]

    @staticmethod
    def of(value: Any) -> PackedResult:
        if isinstance(value, UpdateResult):
            return PackedResult(PackedBatch.of(Batch(**value.columns)), value.metrics)
        if isinstance(value, Ragged):
            value = {"": value} if len(value) else {}
        metrics = {name: item for name, item in value.items() if not isinstance(item, Ragged)}
        return PackedResult(PackedBatch.of(Batch(**{k: v for k, v in value.items() if k not in metrics})), metrics)


class RowTransfer:
    """Starts methods of one role on shards of a batch; what is returned waits for the results of all ranks."""

    def __init__(self, group: WorkerGroup, role: str) -> None:
        self.group = group
        self.role = role
        self._layouts: list[RoleLayout] = []

    @property
    def layouts(self) -> list[RoleLayout]:
        """Of each rank."""
        if not self._layouts:
            self._layouts = self.group.call("role_layout", self.role)
        return self._layouts

    def forward(self, method: str, batch: Batch) -> Pending[dict[str, Ragged]]:
        """A pass without gradients: columns of the whole batch."""
        layout = self.layouts[0]
        cut = cut_forward(model_columns(batch), layout.forward, layout.sharding)
        futures = self._start(method, cut)
        return lambda: self._results(cut, futures).columns

    def update(self, method: str, batch: Batch, step: int) -> Pending[UpdateResult]:
        """All updates of a step: columns they computed on the way, and metrics."""
        layout = self.layouts[0]
        assert layout.plan is not None
        cut = layout.plan.cut(model_columns(batch, layout.reads), step, layout.sharding)
        futures = self._start(method, cut, step)
        return lambda: self._results(cut, futures)

    def _start(self, method: str, cut: Cut, *args: Any) -> list[Future[Any]]:
        """Send every rank its shard; the ranks run what they are sent in this order."""
        ranks: list[list[int]] = [[] for _ in cut.shards]
        for rank, layout in enumerate(self.layouts):
            ranks[layout.data_rank].append(rank)
        members: dict[int, list[int]] = {}  # of each shard: it may be that of all data ranks
        for layout_rank, shard in enumerate(cut.shards):
            members.setdefault(id(shard), []).extend(ranks[layout_rank])
        futures = {}
        for shard in {id(shard): shard for shard in cut.shards}.values():
            packed = self._pack(shard, members[id(shard)])
            payload = self.group.share(packed, packed.nbytes)
            for rank in members[id(shard)]:
                futures[rank] = self.group.submit_shared(rank, payload, "run_shard", self.role, method, *args)
        return [futures[rank] for rank in range(self.group.size)]

    def _results(self, cut: Cut, futures: list[Future[Any]]) -> UpdateResult:
        results = self.group.gather(futures)
        parts: list[dict[str, Ragged]] = [{} for _ in cut.shards]
        metrics: dict[str, float] = {}
        for rank, result in enumerate(results):
            if result is not NO_RESULT:
                parts[self.layouts[rank].data_rank] = dict(result.columns.unpack().columns)
                metrics = metrics or result.metrics
                self.group.traffic.returned += result.columns.nbytes
        return UpdateResult(metrics, cut.join(parts))

    def _pack(self, shard: ForwardShard | UpdateShard, ranks: Sequence[int]) -> PackedShard:
        batch, media = sender_of(self.group).pack_batch(shard.batch, ranks)
        packed = PackedShard(PackedBatch.of(batch), media)
        if isinstance(shard, UpdateShard):
            return replace(packed, epochs=shard.epochs)
        return replace(packed, micro_batches=shard.micro_batches, dummy=shard.dummy)


def model_columns(batch: Batch, others: frozenset[str] = frozenset()) -> Batch:
    """The model's inputs (tokens, media, and any column that nobody else reads), and `others`."""
    unread = (ALONG_RESPONSE | CONTROLLER_COLUMNS) - others
    return batch.keep(
        *(name for name in batch if name == COLUMN or (isinstance(batch[name], Ragged | Tensor) and name not in unread))
    )
