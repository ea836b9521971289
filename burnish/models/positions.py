"""Position ids by model family.

A text model numbers its tokens 0, 1, 2, ... A family with another scheme (such as mrope, whose positions have three
rows and depend on the media) registers its own `Positions` under its `model_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from burnish.models.model_input import ModelInput


class Positions(Protocol):
    def packed(self, lengths: Sequence[int] | Tensor) -> Tensor:
        """[T] (or [rows, T]) for whole sequences of these lengths, one after the other in a packed stream."""
        ...

    def prefill(self, input: ModelInput, start: int, stop: int) -> Tensor:
        """[stop - start] for tokens start..stop of an input; tokens before `start` are in the cache already."""
        ...

    def decode(self, num_cached: Tensor) -> Tensor:
        """[sequences] for the next token of sequences with this many tokens in the cache."""
        ...


class TextPositions:
    """The index of a token in its sequence."""

    def packed(self, lengths: Sequence[int] | Tensor) -> Tensor:
        lengths = torch.as_tensor(lengths)
        starts = lengths.cumsum(0) - lengths
        return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)

    def prefill(self, input: ModelInput, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop)

    def decode(self, num_cached: Tensor) -> Tensor:
        return num_cached


TEXT = TextPositions()
FAMILIES: dict[str, Positions] = {}  # by config.model_type; all others are TEXT


def positions_for(model_type: str) -> Positions:
    return FAMILIES.get(model_type, TEXT)
