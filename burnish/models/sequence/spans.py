"""Which parts of a packed token stream a rank holds.

Causal attention costs a token as many products as there are tokens before it in its row, so with one part per rank the
last ranks would do most of the work. With two parts, one from either end (head and tail), all ranks do about the same:
exactly the same in a stream of one row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

PARTS = 2  # head and tail


class Span(NamedTuple):
    """Tokens start..stop of the stream, which are at `offset` of a rank's slice."""

    start: int
    stop: int
    offset: int


def share_of(tokens: int, size: int, parts: int) -> int:
    """Tokens of a rank's slice; the stream is padded to as many for each."""
    return parts * math.ceil(tokens / (size * parts))


def spans_of(rank: int, size: int, share: int, parts: int) -> list[Span]:
    """This rank's parts, in the stream's order."""
    width = share // parts
    numbers = [rank] if parts == 1 else [rank, parts * size - 1 - rank]
    return [Span(number * width, (number + 1) * width, place * width) for place, number in enumerate(numbers)]


def own(stream: Tensor, spans: list[Span], dimension: int) -> Tensor:
    """A rank's slice of a stream."""
    parts = [stream.narrow(dimension, span.start, span.stop - span.start) for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dimension)
