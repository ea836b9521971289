"""PromptSampler: which prompts come next. The order of an epoch depends on (seed, epoch) and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from burnish.batch import Batch
from burnish.errors import UserError
from burnish.seeding import derive_seed


def epoch_order(num_rows: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """All rows, once each, in the order of this epoch."""
    if not shuffle:
        return list(range(num_rows))
    generator = torch.Generator().manual_seed(derive_seed("prompt order", seed, epoch))
    return torch.randperm(num_rows, generator=generator).tolist()


class PromptSampler:
    """Batches of row indices, epoch after epoch. Its state is a position counted in prompts."""

    def __init__(self, num_rows: int, batch_size: int, shuffle: bool, seed: int) -> None:
        if batch_size < 1:
            raise UserError("a batch needs at least one prompt", key="data.train_batch_size", value=batch_size)
        if batch_size > num_rows:
            raise UserError(
                f"a batch needs more prompts than the dataset has ({num_rows})",
                key="data.train_batch_size",
                value=batch_size,
                allowed=f"1 to {num_rows}",
                hint=f"data.train_batch_size={num_rows}",
            )
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.growth: list[list[int]] = []  # [epoch, prompts from then on], where the data grows
        self._go_to(epoch=0, offset=0)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one epoch (the rest of the epoch is left out), if no single prompts are drawn."""
        return self.num_rows // self.batch_size

    def next(self) -> tuple[list[int], int]:
        """The next full batch and its epoch. What is left of an epoch and too little for a batch is skipped."""
        if self.offset + self.batch_size > len(self.order):
            self._go_to(self.epoch + 1, 0)
        return self._take(self.batch_size), self.epoch

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` prompts, each with its epoch: replacements for prompts that were turned down."""
        indices: list[int] = []
        epochs: list[int] = []
        while len(indices) < count:
            if self.offset == len(self.order):
                self._go_to(self.epoch + 1, 0)
            taken = self._take(min(count - len(indices), len(self.order) - self.offset))
            indices += taken
            epochs += [self.epoch] * len(taken)
        return indices, epochs

    def give_back(self, count: int) -> None:
        """The last `count` prompts were drawn but not needed: they come next."""
        offset, epoch = self.offset - count, self.epoch
        while offset <= 0 and epoch > 0:  # the end of an epoch, not the beginning of the next
            offset, epoch = offset + self._rows_of(epoch - 1), epoch - 1
        self._go_to(epoch, offset)

    @property
    def epochs_done(self) -> int:
        """Passes over the data that are complete."""
        return self.epoch + self.offset // len(self.order)

    def update(self, batch: Batch) -> None:
        """A step is over. This order learns nothing from it."""

    def grow(self, num_rows: int) -> None:
        """There are more prompts now; the new ones join with the next epoch."""
        self.growth = [entry for entry in self.growth if entry[0] <= self.epoch] + [[self.epoch + 1, num_rows]]

    def _rows_of(self, epoch: int) -> int:
        return next((rows for first, rows in reversed(self.growth) if first <= epoch), self.num_rows)

    def _take(self, count: int) -> list[int]:
        start, self.offset = self.offset, self.offset + count
        return self.order[start : self.offset]

    def _go_to(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset
        self.order = epoch_order(self._rows_of(epoch), self.shuffle, self.seed, epoch)

    def state_dict(self) -> dict[str, Any]:
        names = ("epoch", "offset", "num_rows", "shuffle", "seed", *(["growth"] if self.growth else []))
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the state was taken. The batch size may differ; what fixes the order may not."""
        keys = {"num_rows": "number of training prompts", "shuffle": "data.shuffle", "seed": "data.seed"}
        for name, key in keys.items():
            if state[name] != getattr(self, name):
                raise UserError(
                    f"the checkpoint was made with {state[name]!r}, so its position in the data means nothing here",
                    key=key,
                    value=getattr(self, name),
                    hint="the settings and files of the checkpoint, or trainer.resume_mode=disable",
                )
        self.growth = [list(entry) for entry in state.get("growth", [])]
        self._go_to(state["epoch"], state["offset"])


def validation_batches(num_rows: int, batch_size: int | None, shuffle: bool, seed: int) -> Iterator[list[int]]:
    """Every validation row once, the last batch short; no batch size means one batch."""
    order = epoch_order(num_rows, shuffle, derive_seed("validation", seed), epoch=0)
    size = batch_size or num_rows
    for start in range(0, num_rows, size):
        yield order[start : start + size]
