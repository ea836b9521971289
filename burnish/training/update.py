"""The loop that every taught role shares: epochs, mini-batches, micro-batches, one optimizer update per mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, totals
from burnish.algos.masked import Metrics, add_metrics
from burnish.batch import Batch
from burnish.seeding import derive_seed
from burnish.training.optim import Optimizer
from burnish.training.packing import Cut, row_lengths
from burnish.training.parallel import IDLE, SINGLE_PROCESS, ParallelContext
from burnish.training.transfer import to_host


@dataclass(frozen=True)
class UpdatePlan:
    """How a batch is walked through. `mini_rows` rows make one update; `shuffle_seed` None keeps their order."""

    epochs: int
    mini_rows: int
    cut: Cut
    grad_clip: float
    shuffle_seed: int | None = None
    couples_rows: bool = False  # the loss compares rows: every rank sees the whole mini-batch

    def shares(self, lengths: Tensor, parallel: ParallelContext) -> list[tuple[list[int], float]]:
        """This rank's micro-batches of a mini-batch, and what each counts: FSDP averages what should be a sum."""
        if self.couples_rows:
            return [(list(range(len(lengths))), parallel.averaged / parallel.data_size)]
        return [(rows, parallel.averaged if rows else 0.0) for rows in parallel.shard_batch(lengths, self.cut)]

    def counts(self, parallel: ParallelContext) -> bool:
        """Does this rank report its losses? Not where others see the same rows."""
        return not self.couples_rows or parallel.data_rank == 0

    def mini_batches(self, num_rows: int, step: int, epoch: int) -> list[list[int]]:
        order = list(range(num_rows))
        if self.shuffle_seed is not None:
            generator = torch.Generator().manual_seed(derive_seed(self.shuffle_seed, "mini-batches", step, epoch))
            order = torch.randperm(num_rows, generator=generator).tolist()
        return [order[start : start + self.mini_rows] for start in range(0, num_rows, self.mini_rows)]


@dataclass
class Updates:
    """What the updates of one step left behind."""

    metrics: list[Metrics] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)  # one per micro-batch; a mini-batch's parts sum to its loss
    norms: list[float] = field(default_factory=list)  # of each update; not finite where it was thrown away

    def joined(self, parallel: ParallelContext) -> Updates:
        """With what other ranks computed of the same updates. The norm is that of all of them already."""
        if parallel.data_size == 1:
            return self
        return Updates(parallel.collect([add_metrics(self.metrics)]), parallel.collect(self.losses), self.norms)

    def numbers(self, role: str, loss_name: str) -> dict[str, float]:
        """Means over the step, under the role's name."""
        found = {f"{role}/{name}": share.mean() for name, share in add_metrics(self.metrics).items()}
        loss = float(torch.stack(self.losses).sum()) / len(self.norms)
        return found | {f"{role}/{loss_name}": loss, f"{role}/grad_norm": sum(self.norms) / len(self.norms)}


# (micro-batch, its row numbers in the batch, totals of its mini-batch) -> loss to descend, loss to report, metrics
LossOf = Callable[[Batch, list[int], Totals], tuple[Tensor, Tensor, Metrics]]


def run_updates(
    batch: Batch,
    step: int,
    plan: UpdatePlan,
    optimizer: Optimizer,
    loss_of: LossOf,
    parallel: ParallelContext = SINGLE_PROCESS,
    read: list[Any] | None = None,
) -> Updates:
    """Teach one role. Totals are counted over the mini-batch of all ranks: no way to cut it changes a gradient.

    The host waits for the device once, at the end; tensors that the loss has put into `read` then come along.
    """
    done, norms = Updates(), []
    for epoch in range(plan.epochs):
        for index in plan.mini_batches(len(batch), step, epoch):
            mini = batch.select(index)
            count = totals(loss_mask(mini), mini["responses"].lengths, row_weights(mini))
            for rows, weight in plan.shares(row_lengths(mini), parallel):
                loss, reported, metrics = loss_of(mini.select(rows or IDLE), [index[row] for row in rows], count)
                optimizer.backward(loss * weight)
                if rows and plan.counts(parallel):
                    done.losses.append(reported.detach())
                    done.metrics.append(metrics)
            norms.append(optimizer.update(plan.grad_clip))
    optimizer.steps += 1
    done.metrics, done.losses, norms, came = to_host((done.metrics, done.losses, norms, read))
    done.norms = [float(norm) for norm in norms]
    optimizer.saw(done.norms)
    if read is not None:
        read[:] = came
    return done.joined(parallel)


def loss_mask(batch: Batch) -> Tensor:
    """Tokens in the loss: the model's own, less those that were rejected. Flat."""
    mask = batch["response_mask"].flat
    return mask * batch["loss_mask"].flat if "loss_mask" in batch else mask


def row_weights(batch: Batch) -> Tensor | None:
    """How often each row counts, where rows were resampled."""
    return batch.get("weight")
