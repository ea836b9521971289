"""SingleBackend: the plain module, in one process on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from torch import Tensor, nn

from burnish.models.fourbit import is_packed
from burnish.models.stream import WeightStream
from burnish.training.backends.module import ModuleBackend
from burnish.training.offload import Offloaded, TensorOffload


class SingleBackend(ModuleBackend):
    """Holds all weights itself."""

    def _prepare(self) -> Offloaded | None:
        if not self.options.offload:
            cast(nn.Module, self.model).to(self.device)
            return None
        return TensorOffload(self._offloadable, self.device, changes=lambda tensor: tensor.requires_grad)

    def _offloadable(self) -> Iterator[Tensor]:
        """Weights and buffers, but no 4-bit weights: their scales would stay behind."""
        yield from (parameter for parameter in self.model.parameters() if not is_packed(parameter))
        yield from self.model.buffers()

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Can be iterated again: nobody else takes part."""
        return WeightStream(super().weights)
