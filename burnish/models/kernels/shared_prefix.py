"""Shared prefixes in decoding: the KV of a common prefix is read once for all rows of a cluster.

A program has the queries of all rows of a cluster. The kernel of the rows (decode.py) goes on behind the prefix and
merges both results, which are over disjoint keys, by their log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.softmax import add_tile, load_tile, merge, split_tiles, tile_scores
from burnish.models.kernels.tuning import DOT, Tuning, next_power, num_prefix_splits, prefix_warps


def attend_prefixes(
    keys: Tensor,
    values: Tensor,
    query: Tensor,  # [heads, rows, d]
    tables: Tensor,
    lengths: Tensor,
    clusters: Tensor,
    prefix: Tensor,
    scalars: tuple[float, float],  # scaling and soft cap
    constants: dict[str, Any],
    choice: Tuning,
) -> tuple[Tensor, Tensor]:
    """Of every split of the prefixes: outputs [rows, heads, splits, d], and their log-sum-exp."""
    heads, rows, dim = query.shape
    kv_heads, members = keys.shape[1], clusters.shape[1]
    # A batch that is shared well has as many clusters as its rows fill.
    programs = max(1, rows // members) * kv_heads
    splits = num_prefix_splits(programs, tables.shape[1] * keys.shape[2], choice)
    parts = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    queries = max(DOT, next_power(members * (heads // kv_heads)))
    _decode_prefix[(len(clusters), kv_heads, splits)](
        *(query, keys, values, tables, lengths, clusters, prefix, parts, weights, *scalars),
        *(query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), tables.stride(0)),
        **constants,
        MEMBERS=members,
        QUERIES_PAD=queries,
        SPLITS=splits,
        num_stages=choice.prefix_stages,
        num_warps=choice.prefix_warps or prefix_warps(queries, dim),
    )
    return parts, weights


@kernel
def _decode_prefix(
    query,
    keys,
    values,
    tables,
    lengths,
    clusters,
    prefix,
    parts,
    weights,
    scaling,
    softcap,
    query_head,
    query_row,
    cache_block,
    cache_head,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
    MEMBERS: tl.constexpr,
    QUERIES_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One cluster of rows, one key/value head, one split of the prefix: the queries of all members against each tile.

    Members that have ended get no result. A prefix without members that need it is not read.
    """
    cluster, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = tl.load(prefix + cluster)
    if tokens == 0:
        return
    number, dims = tl.arange(0, QUERIES_PAD), tl.arange(0, DIM_PAD)
    member, head = number // GROUP, kv * GROUP + number % GROUP
    row = tl.load(clusters + cluster * MEMBERS + member, mask=member < MEMBERS, other=-1)
    length = tl.load(lengths + row, mask=row >= 0, other=0).to(tl.int32)
    takes_part = length > tokens
    start = tl.where(takes_part, tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0, tokens)
    valid_q = takes_part[:, None] & (dims < DIM)[None, :]
    source = head[:, None] * query_head + row[:, None].to(tl.int64) * query_row + dims[None, :]
    q = tl.load(query + source, mask=valid_q, other=0.0)

    begin, end = split_tiles(tl.min(start, 0), tokens, split, TILE, SPLITS)
    table = tables + tl.load(clusters + cluster * MEMBERS) * table_row  # all members have these blocks
    peak = tl.full([QUERIES_PAD], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES_PAD], tl.float32)
    mixed = tl.zeros([QUERIES_PAD, DIM_PAD], tl.float32)
    for tile in range(begin, end):
        key_position = tile * TILE + tl.arange(0, TILE)
        block = tl.load(table + tile * TILE // BLOCK).to(tl.int64)
        base = block * cache_block + kv * cache_head + (key_position % BLOCK) * DIM
        k, v = load_tile(keys, values, base, key_position < tokens, dims, DIM, q.dtype)
        visible = (key_position[None, :] >= start[:, None]) & (key_position < tokens)[None, :]
        scores = tile_scores(q, k, visible, scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = add_tile(scores, v, peak, total, mixed, PRECISION)

    entry = (row * HEADS + head) * SPLITS + split
    part = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(parts + entry[:, None] * DIM + dims[None, :], part, mask=valid_q & (total > 0.0)[:, None])
    weight = tl.where(total == 0.0, float("-inf"), peak + tl.log(total))
    tl.store(weights + entry, weight, mask=takes_part)


@kernel
def merge_splits(parts, weights, entry, rows, dims, peak, total, mixed, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """Add the results of a prefix's splits to the running softmax of some rows; `entry` is where each row's begin."""
    for number in tl.static_range(SPLITS):
        weight = tl.load(weights + entry + number, mask=rows, other=float("-inf"))
        known = (weight > float("-inf"))[:, None] & (dims < DIM)[None, :]
        part = tl.load(parts + (entry + number)[:, None] * DIM + dims[None, :], mask=known, other=0.0)
        peak, total, mixed = merge(weight, part, peak, total, mixed)
    return peak, total, mixed
