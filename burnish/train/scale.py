"""LossScale: keeps float16 gradients from vanishing. The loss is multiplied, the gradients divided again."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

START, GROW_AFTER, SMALLEST = 2.0**16, 2000, 1.0


class LossScale:
    """Halved by every gradient that is not finite, doubled after many that are. 1 where nothing is scaled."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.factor = START if on else 1.0
        self.good = 0  # updates in a row with a finite gradient

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.factor if self.on else loss

    def unscale(self, parameters: Iterable[Tensor]) -> None:
        if self.on:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1.0 / self.factor)

    def judge(self, finite: bool) -> None:
        """Learn from one update."""
        if not self.on:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.factor = max(SMALLEST, self.factor / 2)
        elif self.good % GROW_AFTER == 0:
            self.factor *= 2
