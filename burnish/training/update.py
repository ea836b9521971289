"""The update loop of trained roles: epochs, mini-batches, micro-batches, one optimizer update per mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, totals
from burnish.algos.masked import Metrics, add_metrics
from burnish.batch import Batch, Ragged
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, MicroBatch, ModelOutput
from burnish.training.batch_shard import Cut, MiniBatch, UpdateShard, cut_update
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import ParallelContext
from burnish.training.row_sharding import RowSharding
from burnish.training.transfer import to_host


@dataclass(frozen=True)
class UpdatePlan:
    """How a batch is split. `mini_rows` rows make one update; `shuffle_seed` None keeps their order."""

    epochs: int
    mini_rows: int
    micro_batch: MicroBatchSize
    grad_clip: float
    shuffle_seed: int | None = None
    mini_batch_order_seed: int | None = None  # None keeps the order of the mini-batches
    couples_rows: bool = False  # the loss compares rows: every data rank runs the whole mini-batch

    def mini_batches(self, num_rows: int, step: int, epoch: int) -> list[list[int]]:
        """Row numbers of each mini-batch."""
        order = list(range(num_rows))
        if self.shuffle_seed is not None:
            generator = torch.Generator().manual_seed(derive_seed(self.shuffle_seed, "mini-batches", step, epoch))
            order = torch.randperm(num_rows, generator=generator).tolist()
        mini_batches = [order[start : start + self.mini_rows] for start in range(0, num_rows, self.mini_rows)]
        if self.mini_batch_order_seed is None:
            return mini_batches
        seed = derive_seed(self.mini_batch_order_seed, "order of mini-batches", step)
        permutation = torch.randperm(len(mini_batches), generator=torch.Generator().manual_seed(seed))
        return [mini_batches[number] for number in permutation.tolist()]

    def schedule(self, batch: Batch, step: int, sharding: RowSharding) -> list[list[list[MiniBatch]]]:
        """[epoch][update][data rank]: what every data rank runs of a batch."""
        sizes, mask = self.micro_batch.sizes(batch), Ragged.like(loss_mask(batch), batch["responses"])
        weights = row_weights(batch)

        def update(numbers: list[int]) -> list[MiniBatch]:
            index = torch.tensor(numbers, dtype=torch.int64)
            own = mask.select(index)
            count = totals(own.flat, own.lengths, None if weights is None else weights[index])
            if self.couples_rows:
                return [MiniBatch([numbers], numbers[0], count, sharding.data_size)] * sharding.data_size
            shards = sharding.micro_batches(sizes.select(index), self.micro_batch)
            return [
                MiniBatch([[numbers[row] for row in rows] for rows in micro_batches], numbers[0], count)
                for micro_batches in shards
            ]

        epochs = range(self.epochs)
        return [[update(numbers) for numbers in self.mini_batches(len(batch), step, epoch)] for epoch in epochs]

    def cut(self, batch: Batch, step: int, sharding: RowSharding) -> Cut:
        """What each data rank needs of a batch."""
        return cut_update(batch, self.schedule(batch, step, sharding), replicated=self.couples_rows)

    def own(self, batch: Batch, step: int, parallel: ParallelContext) -> UpdateShard:
        """A whole batch as this rank's shard."""
        schedule = self.schedule(batch, step, parallel.sharding)
        return UpdateShard(batch, [[update[parallel.data_rank] for update in epoch] for epoch in schedule])

    def contributes(self, parallel: ParallelContext) -> bool:
        """Whether this rank's outputs count: not where another rank has run the same rows."""
        return parallel.has_results and (not self.couples_rows or parallel.data_rank == 0)


@dataclass(frozen=True)
class LossOutput:
    """What a role's loss function reports of one micro-batch."""

    loss: Tensor  # its part of the mini-batch's reported loss
    metrics: Metrics = field(default_factory=dict)
    columns: dict[str, Tensor] = field(default_factory=dict)  # flat, of the micro-batch's rows; kept for the batch


@dataclass
class UpdateOutput:
    """Results of all updates of one step."""

    metrics: list[Metrics] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)  # per micro-batch; those of a mini-batch sum to its loss
    columns: list[tuple[list[int], dict[str, Tensor]]] = field(default_factory=list)  # (rows, their columns)
    grad_norms: list[float] = field(default_factory=list)  # per update; not finite where the update was skipped

    def gathered(self, parallel: ParallelContext, *, with_columns: bool) -> UpdateOutput:
        """With what other ranks computed. The gradient norm is global already."""
        if parallel.data_size == parallel.pipeline_size == 1:
            return self
        return UpdateOutput(
            parallel.gather_lists([add_metrics(self.metrics)]),
            parallel.gather_lists(self.losses),
            parallel.gather_lists(self.columns) if with_columns else self.columns,
            self.grad_norms,
        )

    def summary(self, role: str, loss_name: str) -> dict[str, float]:
        """Means over the step, named after the role."""
        means = {f"{role}/{name}": share.mean() for name, share in add_metrics(self.metrics).items()}
        loss = float(torch.stack(self.losses).sum()) / len(self.grad_norms)
        grad_norm = sum(self.grad_norms) / len(self.grad_norms)
        return means | {f"{role}/{loss_name}": loss, f"{role}/grad_norm": grad_norm}


# (output of a micro-batch, totals of its mini-batch) -> (loss to differentiate, what to report)
UpdateLossFn = Callable[[ModelOutput, Totals], tuple[Tensor, LossOutput]]


def run_updates(
    batch: Batch | UpdateShard,
    step: int,
    plan: UpdatePlan,
    backend: Backend,
    loss_fn: UpdateLossFn,
    on_mini_batch: Callable[[int | None], None] | None = None,
    prepare: Callable[[list[MicroBatch]], None] | None = None,
) -> UpdateOutput:
    """Run all optimizer updates of one step for one role.

    Losses are normalized by token counts of the global mini-batch, so gradients do not depend on how it is split into
    micro-batches. Metrics stay on the device until the end, when one host sync fetches them. `prepare` gets the
    micro-batches of each pass before it.
    """
    optimizer, parallel = backend.optimizer, backend.parallel
    assert optimizer is not None
    result, grad_norms = UpdateOutput(), []
    shard = batch if isinstance(batch, UpdateShard) else plan.own(batch, step, parallel)
    with backend.on_device(), optimizer.on_device():
        for epoch, minis in enumerate(shard.epochs):
            for mini in minis:
                if on_mini_batch is not None:
                    on_mini_batch(len(grad_norms))
                batches = mini.select(shard.batch)
                if prepare is not None:
                    prepare(batches)
                outputs = backend.forward_backward(batches, lambda output, mini=mini: loss_fn(output, mini.count))
                if plan.contributes(parallel):
                    _record(result, batches, outputs, with_columns=epoch == 0)
                grad_norms.append(backend.step(plan.grad_clip))
        if on_mini_batch is not None:
            on_mini_batch(None)
        optimizer.steps += 1
        fetched = to_host((result.metrics, result.losses, result.columns, grad_norms))
        result.metrics, result.losses, result.columns, grad_norms = fetched
    result.grad_norms = [float(norm) for norm in grad_norms]
    optimizer.count_skipped(result.grad_norms)
    return result.gathered(parallel, with_columns=shard is not batch)


def _record(result: UpdateOutput, batches: list[MicroBatch], outputs: list[LossOutput], *, with_columns: bool) -> None:
    """Columns are kept of the first epoch only: later ones have other weights."""
    for micro_batch, output in zip(batches, outputs, strict=True):
        if not micro_batch.rows:
            continue
        result.losses.append(output.loss.detach())
        result.metrics.append(output.metrics)
        if with_columns and output.columns:
            result.columns.append((micro_batch.rows, output.columns))


def loss_mask(batch: Batch) -> Tensor:
    """Tokens in the loss: those the policy sampled, less rejected ones. Flat."""
    mask = batch["response_mask"].flat
    return mask * batch["loss_mask"].flat if "loss_mask" in batch else mask


def row_weights(batch: Batch) -> Tensor | None:
    """How often each row counts, where rows were resampled."""
    return batch.get("weight")
