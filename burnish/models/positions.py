"""Position ids by model family.

A text model numbers its tokens 0, 1, 2, ... A vision family may have another scheme (such as mrope, whose positions
have three rows and depend on the media); text tokens have the same position in all rows, so decoding needs one number
per sequence: the index of the token plus `offset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from burnish.models.model_input import Media, ModelInput


class Positions(Protocol):
    def packed(self, lengths: Sequence[int] | Tensor, media: Sequence[Sequence[Media]] = ()) -> Tensor:
        """[T] (or [rows, T]) for whole sequences of these lengths, one after the other in a packed stream.

        `media`: those of each sequence, offsets counted from its start; empty where no sequence has any.
        """
        ...

    def prefill(self, input: ModelInput, start: int, stop: int) -> Tensor:
        """[stop - start] for tokens start..stop of an input; tokens before `start` are in the cache already."""
        ...

    def offset(self, input: ModelInput) -> int:
        """What is added to the index of every token after the input: its media may take fewer positions than tokens."""
        ...


class TextPositions:
    """The index of a token in its sequence."""

    def packed(self, lengths: Sequence[int] | Tensor, media: Sequence[Sequence[Media]] = ()) -> Tensor:
        lengths = torch.as_tensor(lengths)
        starts = lengths.cumsum(0) - lengths
        return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)

    def prefill(self, input: ModelInput, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop)

    def offset(self, input: ModelInput) -> int:
        return 0


TEXT = TextPositions()


def batched(positions: Tensor) -> Tensor:
    """Positions as transformers takes them, with a batch dimension of one: [1, T] or [rows, 1, T]."""
    return positions.unsqueeze(-2)
