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


def spans_of(rank: int, size: int, share: int, parts: int, inner: int = 1) -> list[Span]:
    """This rank's parts, in the stream's order.

    With `inner` ranks in a group, neighbors cut what would be the slice of one into equal ones.
    """
    outer, member = divmod(rank, inner)
    width = share * inner // parts
    numbers = [outer] if parts == 1 else [outer, parts * (size // inner) - 1 - outer]
    found = []
    for place, number in enumerate(numbers):
        begin, end = max(place * width, member * share), min((place + 1) * width, (member + 1) * share)
        if begin < end:
            offset = number * width - place * width
            found.append(Span(begin + offset, end + offset, begin - member * share))
    return found


def own(stream: Tensor, spans: list[Span], dimension: int) -> Tensor:
    """A rank's slice of a stream."""
    parts = [stream.narrow(dimension, span.start, span.stop - span.start) for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dimension)
