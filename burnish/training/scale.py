"""LossScale: keeps float16 gradients from vanishing. The loss is multiplied, the gradients divided again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from burnish.training.dtensor import local_part

START, GROW_AFTER, SMALLEST = 2.0**16, 2000, 1.0


class LossScale:
    """Halved by every gradient that is not finite, doubled after many that are. 1 where nothing is scaled.

    From the first update on its numbers live on the device, so that the host need not wait for them.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.factor: float | Tensor = START if on else 1.0
        self.good: int | Tensor = 0  # updates in a row with a finite gradient

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.factor if self.on else loss

    def unscale(self, parameters: Iterable[Tensor]) -> None:
        if self.on:
            for parameter in parameters:
                if parameter.grad is not None:
                    local_part(parameter.grad).mul_(1.0 / self.factor)

    def score(self, finite: Tensor) -> None:
        """Learn from one update."""
        if not self.on:
            return
        self.good = torch.where(finite, self.good + 1, 0)
        grown = torch.where(self.good % GROW_AFTER == 0, 2.0, 1.0) * self.factor
        halved = (torch.full_like(grown, 0.5) * self.factor).clamp(min=SMALLEST)
        self.factor = torch.where(finite, grown, halved)
