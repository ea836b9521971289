"""Decode attention over the paged KV cache: one new token per sequence.

One kernel writes the newest key and value into the cache and attends. The query heads of one key/value head are one
program, padded to the tile size of tensor cores; long contexts are split over several programs and combined after.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.shared_prefix import attend_prefixes, merge_splits
from burnish.models.kernels.softmax import add_tile, capped, load_tile, split_tiles, tile_scores
from burnish.models.kernels.tuning import DOT, next_power, num_splits, tile_size, tuning
from burnish.models.varlen import AttentionShape


def write_and_attend(
    keys: Tensor,
    values: Tensor,
    query: Tensor,  # [heads, rows, d]
    key: Tensor,  # [kv_heads, rows, d], of the newest tokens
    value: Tensor,
    slots: Tensor,  # [rows] where they go, as in write_kv
    tables: Tensor,  # [rows, blocks of the longest] int32
    lengths: Tensor,  # [rows] tokens to attend to, including the newest; at least 1
    shape: AttentionShape,
    clusters: Tensor | None = None,  # [clusters, members] int32: rows with a common prefix, -1: none
    prefix: Tensor | None = None,  # [clusters] int32: its tokens, a multiple of the block size; 0: no cluster
    shared: Tensor | None = None,  # [rows] int32: the prefix of the row's cluster
) -> Tensor:
    """[rows, heads, d]. One kernel attends to the newest token directly and writes it into the cache.

    With clusters, another kernel attends to their prefixes before. A row whose length is within its prefix (one that
    has ended has length 1) takes no part in that.
    """
    heads, rows, dim = query.shape
    kv_heads, block = keys.shape[1], keys.shape[2]
    choice = tuning(query.device, dim, kv_heads)
    splits = num_splits(rows * kv_heads, tables.shape[1] * block, choice)
    output = torch.empty(rows, heads, dim, dtype=query.dtype, device=query.device)
    # one program per row: nothing to combine
    parts, weights = (output, output) if splits == 1 else split_results(query, splits)
    constants = decode_constants(keys, query, shape)
    scalars = shape.scaling, shape.softcap or 0.0
    prefix_splits, prefix_parts, prefix_weights = 0, output, output
    if clusters is not None and prefix is not None and shared is not None and len(clusters) > 0:
        where = tables, lengths, clusters, prefix
        prefix_parts, prefix_weights = attend_prefixes(keys, values, query, *where, scalars, constants, choice)
        prefix_splits = prefix_parts.shape[2]
    _decode[(rows, kv_heads, splits)](
        *(query, keys, values, key, value, slots, tables, lengths, lengths if shared is None else shared),
        *(prefix_parts, prefix_weights, parts, weights, *scalars),
        *(query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1)),
        *(keys.stride(0), keys.stride(1), tables.stride(0)),
        **constants,
        GROUP_PAD=max(DOT, next_power(heads // kv_heads)),
        SPLITS=splits,
        PREFIX_SPLITS=prefix_splits,
        num_stages=choice.stages,
        num_warps=choice.warps,
    )
    if splits > 1:
        constants = {"HEADS": heads, "SPLITS": splits, "SPLITS_PAD": next_power(splits)}
        _combine[(rows, heads)](parts, weights, output, **constants, DIM=dim, DIM_PAD=next_power(dim))
    return output


def split_results(query: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Room for the outputs of every split of a context, and their log-sum-exp."""
    heads, rows, dim = query.shape
    parts = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device)
    return parts, torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)


def decode_constants(keys: Tensor, query: Tensor, shape: AttentionShape) -> dict[str, Any]:
    """Constants that the kernels of rows and of shared prefixes have in common."""
    heads, _, dim = query.shape
    kv_heads, block = keys.shape[1], keys.shape[2]
    return {
        "HEADS": heads,
        "GROUP": heads // kv_heads,
        "DIM": dim,
        "DIM_PAD": max(DOT, next_power(dim)),
        "BLOCK": block,
        "TILE": tile_size(block, dim, query.dtype, tuning(query.device, dim, kv_heads)),
        "WINDOW": shape.window or 0,
        "CAPPED": shape.softcap is not None,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }


@kernel
def _decode(
    query,
    keys,
    values,
    key,
    value,
    slots,
    tables,
    lengths,
    shared,
    prefix_parts,
    prefix_weights,
    parts,
    weights,
    scaling,
    softcap,
    query_head,
    query_row,
    key_head,
    key_row,
    value_head,
    value_row,
    cache_block,
    cache_head,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One row, one key/value head, one split of the context after the shared prefix; split 0 also has the newest token
    and the results of the prefix."""
    row, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    start = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    cached = length - 1
    before = 0
    if PREFIX_SPLITS > 0:
        before = tl.load(shared + row).to(tl.int32)
        before = tl.where(before < length, before, 0)
        start = tl.maximum(start, before)
    begin, end = split_tiles(start, cached, split, TILE, SPLITS)

    members, dims = tl.arange(0, GROUP_PAD), tl.arange(0, DIM_PAD)
    head = kv * GROUP + members
    valid_q = (members < GROUP)[:, None] & (dims < DIM)[None, :]
    q = tl.load(query + head[:, None] * query_head + row * query_row + dims[None, :], mask=valid_q, other=0.0)
    slot = tl.load(slots + row).to(tl.int64)
    target = (slot // BLOCK) * cache_block + kv * cache_head + (slot % BLOCK) * DIM
    new_key = _load_and_store(key + kv * key_head + row * key_row, keys + target, split == 0, dims, DIM)
    new_value = _load_and_store(value + kv * value_head + row * value_row, values + target, split == 0, dims, DIM)
    peak, total, mixed = _newest(q, new_key, new_value, split == 0, scaling, softcap, GROUP_PAD, CAPPED)
    if PREFIX_SPLITS > 0:
        merged = tl.where(split == 0, tl.where(before > 0, GROUP, 0), 0)
        entry = (row * HEADS + head) * PREFIX_SPLITS
        rows = members < merged
        peak, total, mixed = merge_splits(
            prefix_parts, prefix_weights, entry, rows, dims, peak, total, mixed, DIM, PREFIX_SPLITS
        )
    for tile in range(begin, end):
        key_position = tile * TILE + tl.arange(0, TILE)
        visible = (key_position >= start) & (key_position < cached)
        block = tl.load(tables + row * table_row + tile * TILE // BLOCK).to(tl.int64)
        base = block * cache_block + kv * cache_head + (key_position % BLOCK) * DIM
        k, v = load_tile(keys, values, base, visible, dims, DIM, q.dtype)
        scores = tile_scores(q, k, visible[None, :], scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = add_tile(scores, v, peak, total, mixed, PRECISION)

    entry = (row * HEADS + head) * SPLITS + split
    _store_result(parts, weights, entry, members < GROUP, dims, peak, total, mixed, DIM, SPLITS)


@kernel
def _store_result(
    parts, weights, entry, valid, dims, peak, total, mixed, DIM: tl.constexpr, SPLITS: tl.constexpr
) -> None:
    """The softmax over one split: outputs, and if there are several splits, their log-sum-exp."""
    part = (mixed / tl.where(total == 0.0, 1.0, total)[:, None]).to(parts.dtype.element_ty)
    tl.store(parts + entry[:, None] * DIM + dims[None, :], part, mask=valid[:, None] & (dims < DIM)[None, :])
    if SPLITS > 1:
        tl.store(weights + entry, tl.where(total == 0.0, float("-inf"), peak + tl.log(total)), mask=valid)


@kernel
def _load_and_store(source, target, owns, dims, DIM: tl.constexpr):
    """Load a vector in the dtype of the cache; the program that owns it also stores it there."""
    vector = tl.load(source + dims, mask=dims < DIM, other=0.0).to(target.dtype.element_ty)
    tl.store(target + dims, vector, mask=dims < tl.where(owns, DIM, 0))
    return vector


@kernel
def _newest(q, key, value, owns, scaling, softcap, GROUP_PAD: tl.constexpr, CAPPED: tl.constexpr):
    """Softmax state (maximum, sum, weighted values) after the newest key, or empty if another program owns it."""
    score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scaling
    if CAPPED:
        score = capped(score, softcap)
    peak = tl.where(owns, score, float("-inf"))
    total = tl.where(owns, tl.full([GROUP_PAD], 1.0, tl.float32), 0.0)
    return peak, total, total[:, None] * value.to(tl.float32)[None, :]


@kernel
def _combine(
    parts,
    weights,
    output,
    HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
) -> None:
    """One head of one row: combine its splits, weighted by their share of the softmax."""
    entry = tl.program_id(0) * HEADS + tl.program_id(1)
    splits, dims = tl.arange(0, SPLITS_PAD), tl.arange(0, DIM_PAD)
    weight = tl.load(weights + entry * SPLITS + splits, mask=splits < SPLITS, other=float("-inf"))
    share = tl.exp(weight - tl.max(weight, 0))
    valid = (splits < SPLITS)[:, None] & (dims < DIM)[None, :]
    part = tl.load(parts + (entry * SPLITS + splits[:, None]) * DIM + dims[None, :], mask=valid, other=0.0)
    mixed = tl.sum(share[:, None] * part, 0) / tl.sum(share, 0)
    tl.store(output + entry * DIM + dims, mixed.to(output.dtype.element_ty), mask=dims < DIM)
