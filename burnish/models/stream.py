"""WeightStream: (name, tensor) pairs of a model, for weight sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor


class WeightStream:
    """Can be iterated more than once, e.g. to load a restarted engine."""

    def __init__(self, read: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        self.read = read

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.read())
