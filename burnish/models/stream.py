"""WeightStream: a model's (name, tensor) pairs, on their way to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor


class WeightStream:
    """Can be read more than once: an engine that died is filled from it again."""

    def __init__(self, read: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        self.read = read

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.read())
