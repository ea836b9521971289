"""LossScale: dynamic loss scaling for float16 gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from burnish.training.dtensor import local_part

INITIAL, GROWTH_INTERVAL, MINIMUM = 2.0**16, 2000, 1.0


class LossScale:
    """Halved by every gradient that is not finite, doubled after GROWTH_INTERVAL finite ones. 1 where disabled.

    After the first update its numbers live on the device, so that the host need not wait for them.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.factor: float | Tensor = INITIAL if enabled else 1.0
        self.num_finite: int | Tensor = 0  # updates in a row with a finite gradient

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.factor if self.enabled else loss

    def unscale(self, parameters: Iterable[Tensor]) -> None:
        if self.enabled:
            for parameter in parameters:
                if parameter.grad is not None:
                    local_part(parameter.grad).mul_(1.0 / self.factor)

    def update(self, finite: Tensor) -> None:
        """Adapt the scale after one gradient."""
        if not self.enabled:
            return
        self.num_finite = torch.where(finite, self.num_finite + 1, 0)
        grown = torch.where(self.num_finite % GROWTH_INTERVAL == 0, 2.0, 1.0) * self.factor
        halved = (torch.full_like(grown, 0.5) * self.factor).clamp(min=MINIMUM)
        self.factor = torch.where(finite, grown, halved)
