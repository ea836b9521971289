"""Attention in tiles of keys, merged by log-sum-exp, and its backward pass.

Heads are grouped: query [kv_heads, heads per kv_head, tokens, d], key and value [kv_heads, tokens, d].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.sequence.spans import Span
from burnish.models.varlen import AttentionShape

# Heads x queries x keys of one tile: 32 M entries are 128 MiB of float32.
TILE_ENTRIES = 1 << 25


@dataclass(frozen=True)
class Tile:
    """A range of queries and a range of keys they attend to, relative to their slices."""

    queries: slice
    keys: slice
    gap: int  # stream position of the first query minus that of the first key
    masked: bool  # whether part of the tile is masked: after a query, or before its window


class Merged:
    """Output and log-sum-exp of every query over the keys seen so far, in float32."""

    def __init__(self, query: Tensor, width: int) -> None:
        self.output = query.new_zeros((*query.shape[:-1], width), dtype=torch.float32)
        self.lse = query.new_full(query.shape[:-1], float("-inf"), dtype=torch.float32)

    def add(self, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, tile: Tile) -> None:
        """Merge a tile. The tile with a query's own key comes first, so that lse is finite from then on."""
        scores = tile_scores(query, key, shape, tile)
        before = self.lse[:, :, tile.queries]
        lse = torch.logaddexp(before, scores.logsumexp(-1))
        weights = torch.exp(scores - lse[..., None])
        added = torch.einsum("ghqk,gkd->ghqd", weights.to(value.dtype), value[:, tile.keys]).float()
        kept = self.output[:, :, tile.queries] * torch.exp(before - lse)[..., None]
        self.output[:, :, tile.queries] = kept + added
        self.lse[:, :, tile.queries] = lse


class Queries(NamedTuple):
    """Queries of a slice, with what the backward pass needs."""

    query: Tensor
    lse: Tensor
    grad: Tensor  # of the output
    inner: Tensor  # gradient x output, summed over the head size


@dataclass(frozen=True)
class Gradients:
    """Accumulated gradients of a slice's queries and of a slice's keys and values, in float32."""

    query: Tensor
    key: Tensor
    value: Tensor

    def add(self, queries: Queries, key: Tensor, value: Tensor, shape: AttentionShape, tile: Tile) -> None:
        """Add the gradients of a tile; its scores are recomputed."""
        query, lse, grad, inner = queries
        rows, columns = tile.queries, tile.keys
        scores = tile_scores(query, key, shape, tile)
        weights = torch.exp(scores - lse[:, :, rows, None])
        grad = grad[:, :, rows]
        self.value[:, columns] += torch.einsum("ghqk,ghqd->gkd", weights.to(grad.dtype), grad).float()
        grad_weights = torch.einsum("ghqd,gkd->ghqk", grad, value[:, columns]).float()
        grad_scores = weights * (grad_weights - inner[:, :, rows, None])
        if shape.softcap is not None:  # d tanh: 1 - (capped / cap)^2; masked entries have weight 0
            capped = scores.masked_fill(scores == float("-inf"), 0.0)
            grad_scores = grad_scores * (1 - (capped / shape.softcap) ** 2)
        grad_scores = (grad_scores * shape.scaling).to(query.dtype)
        self.query[:, :, rows] += torch.einsum("ghqk,gkd->ghqd", grad_scores, key[:, columns]).float()
        self.key[:, columns] += torch.einsum("ghqk,ghqd->gkd", grad_scores, query[:, :, rows]).float()


def tile_scores(query: Tensor, key: Tensor, shape: AttentionShape, tile: Tile) -> Tensor:
    """float32 [kv_heads, heads per kv_head, queries, keys], -inf where masked."""
    scores = torch.einsum("ghqd,gkd->ghqk", query[:, :, tile.queries], key[:, tile.keys]).float() * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if not tile.masked:
        return scores
    rows, columns = (torch.arange(n, device=query.device) for n in scores.shape[2:])
    distance = rows[:, None] - columns[None, :] + tile.gap
    hidden = distance < 0
    if shape.window is not None:
        hidden |= distance >= shape.window
    return scores.masked_fill(hidden, float("-inf"))


def tiles(
    segments: Sequence[int], mine: Span, other: Span, window: int | None, heads: int, entries: int = TILE_ENTRIES
) -> Iterator[Tile]:
    """Tiles in which queries of the part `mine` of a stream attend to keys of the part `other` (not a later one).

    They are relative to the slices that the parts belong to. Queries are split so that no tile has more than `entries`
    scores.
    """
    start = 0
    for length in segments:
        first, last = max(start, mine.start), min(start + length, mine.stop)  # queries
        begin, end = max(start, other.start), min(start + length, other.stop)  # keys
        start += length
        if first >= last or begin >= end:
            continue
        rows = max(1, entries // (heads * (end - begin)))
        for top in range(first, last, rows):
            bottom = min(last, top + rows)
            left = begin if window is None else max(begin, top - window + 1)
            right = min(end, bottom)
            if left >= right:
                continue
            ahead = right - 1 > top
            behind = window is not None and bottom - 1 - left >= window
            query, key = mine.offset - mine.start, other.offset - other.start
            yield Tile(slice(top + query, bottom + query), slice(left + key, right + key), top - left, ahead or behind)
