"""PromptSampler: which prompts come next. The order of an epoch depends on (seed, epoch) and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from burnish.address import address
from burnish.errors import UserError


def epoch_order(num_rows: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """All rows, once each, in the order of this epoch."""
    if not shuffle:
        return list(range(num_rows))
    generator = torch.Generator().manual_seed(address("prompt order", seed, epoch))
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
        self._go_to(epoch=0, offset=0)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one epoch (the rest of the epoch is left out), if no single prompts are drawn."""
        return self.num_rows // self.batch_size

    def next(self) -> tuple[list[int], int]:
        """The next full batch and its epoch. What is left of an epoch and too little for a batch is skipped."""
        if self.offset + self.batch_size > self.num_rows:
            self._go_to(self.epoch + 1, 0)
        return self._take(self.batch_size), self.epoch

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` prompts, each with its epoch: replacements for prompts that were turned down."""
        indices: list[int] = []
        epochs: list[int] = []
        while len(indices) < count:
            if self.offset == self.num_rows:
                self._go_to(self.epoch + 1, 0)
            taken = self._take(min(count - len(indices), self.num_rows - self.offset))
            indices += taken
            epochs += [self.epoch] * len(taken)
        return indices, epochs

    def _take(self, count: int) -> list[int]:
        start, self.offset = self.offset, self.offset + count
        return self.order[start : self.offset]

    def _go_to(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset
        self.order = epoch_order(self.num_rows, self.shuffle, self.seed, epoch)

    def state_dict(self) -> dict[str, Any]:
        names = ("epoch", "offset", "num_rows", "shuffle", "seed")
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
        self._go_to(state["epoch"], state["offset"])


def validation_batches(num_rows: int, batch_size: int | None, shuffle: bool, seed: int) -> Iterator[list[int]]:
    """Every validation row once, the last batch short; no batch size means one batch."""
    order = epoch_order(num_rows, shuffle, address("validation", seed), epoch=0)
    size = batch_size or num_rows
    for start in range(0, num_rows, size):
        yield order[start : start + size]
