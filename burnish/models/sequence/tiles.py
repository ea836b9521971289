"""Attention a tile at a time: part of the keys, merged into what other parts gave, and the way back.

Grouped heads stand together: query [kv_heads, heads per kv_head, tokens, d], key and value [kv_heads, tokens, d].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.varlen import AttentionShape

# Heads x queries x keys of one tile: 32 M entries are 128 MiB of float32.
TILE_ENTRIES = 1 << 25


@dataclass(frozen=True)
class Tile:
    """A stretch of queries and the stretch of keys they may look at, in places of their slices."""

    queries: slice
    keys: slice
    gap: int  # place of the first query less that of the first key, in the stream
    masked: bool  # is part of the tile out of sight: ahead of a query, or behind its window?


class Merged:
    """Output and log-sum-exp of every query over the keys seen so far, in float32."""

    def __init__(self, query: Tensor, width: int) -> None:
        self.output = query.new_zeros((*query.shape[:-1], width), dtype=torch.float32)
        self.lse = query.new_full(query.shape[:-1], float("-inf"), dtype=torch.float32)

    def add(self, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, tile: Tile) -> None:
        """The tile's keys join in. A query's own key comes first, so that no later tile finds it empty."""
        scores = tile_scores(query, key, shape, tile)
        before = self.lse[:, :, tile.queries]
        lse = torch.logaddexp(before, scores.logsumexp(-1))
        weights = torch.exp(scores - lse[..., None])
        added = torch.einsum("ghqk,gkd->ghqd", weights.to(value.dtype), value[:, tile.keys]).float()
        kept = self.output[:, :, tile.queries] * torch.exp(before - lse)[..., None]
        self.output[:, :, tile.queries] = kept + added
        self.lse[:, :, tile.queries] = lse


class Asked(NamedTuple):
    """What the forward pass knows of a slice's queries, and what the backward pass asks of them."""

    query: Tensor
    lse: Tensor
    grad: Tensor  # of the output
    inner: Tensor  # gradient x output, summed over a head's width


@dataclass(frozen=True)
class Gradients:
    """What is known so far of the gradients of a slice's queries and of a slice's keys and values, in float32."""

    query: Tensor
    key: Tensor
    value: Tensor

    def add(self, of: Asked, key: Tensor, value: Tensor, shape: AttentionShape, tile: Tile) -> None:
        """What the tile adds; its scores are made again."""
        query, lse, grad, inner = of
        asked, seen = tile.queries, tile.keys
        scores = tile_scores(query, key, shape, tile)
        weights = torch.exp(scores - lse[:, :, asked, None])
        grad = grad[:, :, asked]
        self.value[:, seen] += torch.einsum("ghqk,ghqd->gkd", weights.to(grad.dtype), grad).float()
        by_weight = torch.einsum("ghqd,gkd->ghqk", grad, value[:, seen]).float()
        by_score = weights * (by_weight - inner[:, :, asked, None])
        if shape.softcap is not None:  # d tanh: 1 - (capped / cap)^2; what is out of sight has no weight
            capped = scores.masked_fill(scores == float("-inf"), 0.0)
            by_score = by_score * (1 - (capped / shape.softcap) ** 2)
        by_score = (by_score * shape.scaling).to(query.dtype)
        self.query[:, :, asked] += torch.einsum("ghqk,gkd->ghqd", by_score, key[:, seen]).float()
        self.key[:, seen] += torch.einsum("ghqk,ghqd->gkd", by_score, query[:, :, asked]).float()


def tile_scores(query: Tensor, key: Tensor, shape: AttentionShape, tile: Tile) -> Tensor:
    """float32 [kv_heads, heads per kv_head, queries, keys], -inf out of sight."""
    scores = torch.einsum("ghqd,gkd->ghqk", query[:, :, tile.queries], key[:, tile.keys]).float() * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if not tile.masked:
        return scores
    asked, seen = (torch.arange(n, device=query.device) for n in scores.shape[2:])
    distance = asked[:, None] - seen[None, :] + tile.gap
    hidden = distance < 0
    if shape.window is not None:
        hidden |= distance >= shape.window
    return scores.masked_fill(hidden, float("-inf"))


def tiles(
    segments: list[int], share: int, mine: int, other: int, window: int | None, heads: int, entries: int = TILE_ENTRIES
) -> Iterator[Tile]:
    """Everything that queries of slice `mine` may see of slice `other`, which is not a later one.

    A slice is `share` tokens of the stream. Queries are cut so that no tile has more than `entries` scores.
    """
    start = 0
    for length in segments:
        first, last = max(start, mine * share), min(start + length, (mine + 1) * share)  # queries
        begin, end = max(start, other * share), min(start + length, (other + 1) * share)  # keys
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
            yield Tile(
                slice(top - mine * share, bottom - mine * share),
                slice(left - other * share, right - other * share),
                top - left,
                ahead or behind,
            )
