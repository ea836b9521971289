"""PromptSampler: the order of the prompts. The order of an epoch depends on (seed, epoch) only."""

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
            raise UserError("the batch size must be at least 1", key="data.train_batch_size", value=batch_size)
        if batch_size > num_rows:
            raise UserError(
                f"the batch size exceeds the dataset's {num_rows} prompts",
                key="data.train_batch_size",
                value=batch_size,
                allowed=f"1 to {num_rows}",
                hint=f"data.train_batch_size={num_rows}",
            )
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.growth: list[list[int]] = []  # [epoch, number of prompts from then on], where rows are generated
        self._go_to(epoch=0, offset=0)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches per epoch (the rest is dropped), if `draw` is not used."""
        return self.num_rows // self.batch_size

    def notices(self) -> list[str]:
        """What `next` leaves out, for the start of the run."""
        rest = self.num_rows % self.batch_size
        if not rest:
            return []
        size = f"data.train_batch_size={self.batch_size}"
        return [f"{rest} of {self.num_rows} training rows are left out of every epoch: {size} does not divide them"]

    def next(self) -> tuple[list[int], int]:
        """The next full batch and its epoch. An incomplete batch at the end of an epoch is dropped."""
        if self.offset + self.batch_size > len(self.order):
            self._go_to(self.epoch + 1, 0)
        return self._take(self.batch_size), self.epoch

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` prompts, each with its epoch: replacements for rejected prompts."""
        indices: list[int] = []
        epochs: list[int] = []
        while len(indices) < count:
            if self.offset == len(self.order):
                self._go_to(self.epoch + 1, 0)
            batch = self._take(min(count - len(indices), len(self.order) - self.offset))
            indices += batch
            epochs += [self.epoch] * len(batch)
        return indices, epochs

    def give_back(self, count: int) -> None:
        """Return the last `count` prompts unused; they come next."""
        offset, epoch = self.offset - count, self.epoch
        while offset <= 0 and epoch > 0:  # the end of an epoch, not the beginning of the next
            offset, epoch = offset + self._rows_of(epoch - 1), epoch - 1
        self._go_to(epoch, offset)

    @property
    def epochs_done(self) -> int:
        """Completed passes over the data."""
        return self.epoch + self.offset // len(self.order)

    def update(self, batch: Batch) -> None:
        """Called after each step; this order does not depend on it."""

    def grow(self, num_rows: int) -> None:
        """The dataset has grown; the new prompts join in the next epoch."""
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
        """Continue at the saved position. The batch size may differ; what determines the order may not."""
        keys = {"num_rows": "number of training prompts", "shuffle": "data.shuffle", "seed": "data.seed"}
        for name, key in keys.items():
            if state[name] != getattr(self, name):
                raise UserError(
                    f"the checkpoint has {state[name]!r}, so its position in the data does not apply",
                    key=key,
                    value=getattr(self, name),
                    hint="the settings and files of the checkpoint, or trainer.resume_mode=disable",
                )
        self.growth = [list(entry) for entry in state.get("growth", [])]
        self._go_to(state["epoch"], state["offset"])


def validation_batches(num_rows: int, batch_size: int | None, shuffle: bool, seed: int) -> Iterator[list[int]]:
    """Every validation row once; the last batch may be short. Without a batch size, one batch."""
    order = epoch_order(num_rows, shuffle, derive_seed("validation", seed), epoch=0)
    size = batch_size or num_rows
    for start in range(0, num_rows, size):
        yield order[start : start + size]
