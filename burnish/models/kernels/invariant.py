"""Kernels whose rows do not depend on the rest of the batch, for engine and trainer alike.

Decoding, prefill and training launch the very same kernels, with the same tiles, warps and pipeline stages, whatever
the number of rows: tensor cores then add up the same products in the same order, and the compiler contracts the same
operations. What depends on the number of rows is only which programs run. Tiles depend on the weights and the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.softmax import add_tile, tile_scores
from burnish.models.kernels.tuning import next_power
from burnish.models.varlen import AttentionShape

ROWS, COLUMNS, DEPTH_BYTES = 128, 128, 128  # tile of a product; the depth in bytes, so that it fits for every dtype
ROW_GROUP = 8  # tiles of rows that share their columns' weights in the L2 cache
PRODUCT_WARPS, PRODUCT_STAGES = 8, 3
MAX_PARTS = 3  # weights that one product takes at once
QUERIES = 64  # rows of a tile of attention: tokens times query heads of one key/value head
KEYS = 64  # keys per tile; divides the blocks of the KV cache
ATTENTION_WARPS, ATTENTION_STAGES = 4, 2
GATE_BLOCK = 1024


class Spans(NamedTuple):
    """Which queries attend to which keys; all int32.

    The keys of a segment are found through its row of `tables`, as in a paged cache. A packed stream has blocks of KEYS
    tokens from the segment's first token on: `tables` is one row 0, 1, 2, ... for all segments, of stride 0.
    """

    tables: Tensor  # [segments, blocks]
    segments: Tensor  # [segments, 4]: first token in the stream, their number, tokens cached before, first key
    tiles: Tensor  # [tiles, 2]: segment, first token of the tile inside it
    block: int  # tokens per block
    packed: bool  # a packed stream, not a paged cache


def tokens_per_tile(group: int) -> int:
    """Tokens of a tile of queries, where `group` query heads share a key/value head."""
    return QUERIES // group


def product(
    rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], out: Tensor | None = None
) -> Tensor:
    """[T, K] times the transposed weights [N_i, K], plus biases, side by side: [T, sum of N_i], in the rows' dtype."""
    count, depth = rows.shape
    sizes = [len(weight) for weight in weights]
    out = rows.new_empty(count, sum(sizes)) if out is None else out
    if count == 0:
        return out
    parts, biased = len(weights), biases[0] is not None
    padding = [*weights[:1] * (MAX_PARTS - parts)]
    tile_depth = DEPTH_BYTES // rows.dtype.itemsize
    column_tiles = sum(-(-size // COLUMNS) for size in sizes)
    _product[(-(-count // ROWS) * column_tiles,)](
        rows,
        *(weight.contiguous() for weight in (*weights, *padding)),
        *(biases if biased else [rows] * parts),
        *([rows] * (MAX_PARTS - parts)),
        out,
        count,
        *(*sizes, *([0] * (MAX_PARTS - parts))),
        depth,
        rows.stride(0),
        out.stride(0),
        PARTS=parts,
        BIASED=biased,
        EVEN=depth % tile_depth == 0,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=tile_depth,
        GROUP=ROW_GROUP,
        num_warps=PRODUCT_WARPS,
        num_stages=PRODUCT_STAGES,
    )
    return out


def rms_norm(rows: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """[T, hidden] divided by each row's root mean square, times the weight; computed in float32."""
    count, hidden = rows.shape
    out = torch.empty(count, hidden, dtype=dtype, device=rows.device)
    block = next_power(hidden)
    warps = 4 if block <= 1024 else 8
    if count:
        _rms_norm[(count,)](rows, weight, out, eps, rows.stride(0), hidden, BLOCK=block, num_warps=warps)
    return out


def gated(joined: Tensor) -> Tensor:
    """SiLU of the left half of [T, 2 N], times the right half."""
    count, size = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(count, size)
    if count:
        _gated[(count, -(-size // GATE_BLOCK))](joined, out, size, BLOCK=GATE_BLOCK)
    return out


def rotary_tables(positions: Tensor, frequencies: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position [T] times each frequency [d / 2], float32 [T, d / 2]."""
    count, half = len(positions), len(frequencies)
    cos = torch.empty(count, half, dtype=torch.float32, device=positions.device)
    sin = torch.empty_like(cos)
    if count:
        _rotary_tables[(count,)](positions, frequencies, cos, sin, scaling, half, BLOCK=next_power(half))
    return cos, sin


def rotate(
    joined: Tensor,  # [T, width]: query heads, key heads, and what is behind them
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    norms: tuple[Tensor, Tensor] | None = None,  # [d] each: weights of the norms of query and key heads
    eps: float = 0.0,
) -> Tensor:
    """Rotary embedding of queries and keys, after their norms where they have some: [T, heads + kv_heads, d]."""
    count, dim = len(joined), 2 * cos.shape[1]
    out = joined.new_empty(count, heads + kv_heads, dim)
    if count:
        _rotate[(count,)](
            joined,
            cos,
            sin,
            *(norms or (joined, joined)),
            out,
            eps,
            joined.stride(0),
            heads,
            HEADS=heads + kv_heads,
            HEADS_PAD=next_power(heads + kv_heads),
            HALF=dim // 2,
            HALF_PAD=next_power(dim // 2),
            NORMED=norms is not None,
        )
    return out


def attend(
    query: Tensor,  # [heads, T, d]
    keys: Tensor,  # [blocks, kv_heads, tokens, d]: a paged cache, or a packed stream as one block
    values: Tensor,
    spans: Spans,
    shape: AttentionShape,
) -> tuple[Tensor, Tensor]:
    """[T, heads, d], and the log-sum-exp of the scores [heads, T]. Each token attends to its own segment up to itself.

    A query meets the tiles of keys one after the other, from the segment's first token on.
    """
    heads, tokens, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    output = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    normalizer = torch.empty(heads, tokens, dtype=torch.float32, device=query.device)
    if shape.softcap is not None:
        raise ValueError("no family with soft-capped attention has invariant kernels")
    strides = (KEYS * pool.stride(2) if spans.packed else pool.stride(0) for pool in (keys, values))
    _attend[(len(spans.tiles), kv_heads)](
        query,
        keys,
        values,
        spans.tables,
        spans.segments,
        spans.tiles,
        output,
        normalizer,
        shape.scaling,
        *(query.stride(0), query.stride(1)),
        *(*strides, keys.stride(1), values.stride(1), keys.stride(2), values.stride(2)),
        *(spans.tables.stride(0), spans.block, tokens),
        HEADS=heads,
        GROUP=group,
        QUERIES=QUERIES,
        KEYS=KEYS,
        DIM=dim,
        DIM_PAD=max(16, next_power(dim)),
        WINDOW=shape.window or 0,
        num_warps=ATTENTION_WARPS,
        num_stages=ATTENTION_STAGES,
    )
    return output, normalizer


@kernel
def _product(
    rows,
    weight,
    weight_1,
    weight_2,
    bias,
    bias_1,
    bias_2,
    out,
    count,
    size,
    size_1,
    size_2,
    depth,
    row_stride,
    out_stride,
    PARTS: tl.constexpr,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One tile of the result, which belongs to one of the weights."""
    tiles, tiles_1, tiles_2 = tl.cdiv(size, COLUMNS), tl.cdiv(size_1, COLUMNS), tl.cdiv(size_2, COLUMNS)
    per_group = GROUP * (tiles + tiles_1 + tiles_2)
    first = tl.program_id(0) // per_group * GROUP
    members = tl.minimum(tl.cdiv(count, ROWS) - first, GROUP)
    row_tile = first + tl.program_id(0) % per_group % members
    column_tile = tl.program_id(0) % per_group // members
    offset = 0
    if PARTS > 2:
        last = column_tile >= tiles + tiles_1
        column_tile = tl.where(last, column_tile - tiles - tiles_1, column_tile)
        weight, bias = tl.where(last, weight_2, weight), tl.where(last, bias_2, bias)
        offset, size = tl.where(last, size + size_1, offset), tl.where(last, size_2, size)
        tiles = tl.where(last, tiles_2, tiles)
    if PARTS > 1:
        second = column_tile >= tiles
        column_tile = tl.where(second, column_tile - tiles, column_tile)
        weight, bias = tl.where(second, weight_1, weight), tl.where(second, bias_1, bias)
        offset, size = tl.where(second, size, offset), tl.where(second, size_1, size)

    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, DEPTH)
    # Rows and columns beyond the end repeat the last one, and are not stored.
    left = rows + tl.minimum(row, count - 1).to(tl.int64)[:, None] * row_stride + place[None, :]
    right = weight + tl.minimum(column, size - 1).to(tl.int64)[None, :] * depth + place[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, tl.cdiv(depth, DEPTH)):
        if EVEN:
            a, b = tl.load(left), tl.load(right)
        else:
            inside = place < depth - step * DEPTH
            a = tl.load(left, mask=inside[None, :], other=0.0)
            b = tl.load(right, mask=inside[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        left += DEPTH
        right += DEPTH
    if BIASED:
        total += tl.load(bias + tl.minimum(column, size - 1)).to(tl.float32)[None, :]
    target = out + row.to(tl.int64)[:, None] * out_stride + (offset + column)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < count)[:, None] & (column < size)[None, :])


@kernel
def _rms_norm(rows, weight, out, eps, row_stride, hidden, BLOCK: tl.constexpr) -> None:
    """One row."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = place < hidden
    x = tl.load(rows + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / hidden + eps)
    tl.store(out + row * hidden + place, (x * inverse * scale).to(out.dtype.element_ty), mask=inside)


@kernel
def _gated(joined, out, size, BLOCK: tl.constexpr) -> None:
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = joined + row * 2 * size + place
    gate = tl.load(start, mask=place < size, other=0.0).to(tl.float32)
    up = tl.load(start + size, mask=place < size, other=0.0).to(tl.float32)
    tl.store(out + row * size + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=place < size)


@kernel
def _rotary_tables(positions, frequencies, cos, sin, scaling, half, BLOCK: tl.constexpr) -> None:
    token, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    frequency = tl.load(frequencies + place, mask=place < half, other=0.0)
    angle = tl.load(positions + token).to(tl.float32) * frequency
    tl.store(cos + token * half + place, tl.cos(angle) * scaling, mask=place < half)
    tl.store(sin + token * half + place, tl.sin(angle) * scaling, mask=place < half)


@kernel
def _rotate(
    joined,
    cos,
    sin,
    query_norm,
    key_norm,
    out,
    eps,
    row_stride,
    num_queries,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """All query and key heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head, place = tl.arange(0, HEADS_PAD)[:, None], tl.arange(0, HALF_PAD)[None, :]
    inside = (head < HEADS) & (place < HALF)
    source = joined + token * row_stride + head * 2 * HALF + place
    left = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        inverse = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * HALF) + eps)[:, None]
        of_query, of_key = inside & (head < num_queries), inside & (head >= num_queries)
        place_q, place_k = query_norm + place + head * 0, key_norm + place + head * 0
        scale = tl.load(place_q, mask=of_query, other=0.0).to(tl.float32)
        scale += tl.load(place_k, mask=of_key, other=0.0).to(tl.float32)
        left *= inverse * scale
        scale = tl.load(place_q + HALF, mask=of_query, other=0.0).to(tl.float32)
        scale += tl.load(place_k + HALF, mask=of_key, other=0.0).to(tl.float32)
        right *= inverse * scale
    c = tl.load(cos + token * HALF + place, mask=place < HALF, other=0.0)
    s = tl.load(sin + token * HALF + place, mask=place < HALF, other=0.0)
    target = out + (token * HEADS + head) * 2 * HALF + place
    tl.store(target, (left * c - right * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, (right * c + left * s).to(out.dtype.element_ty), mask=inside)


@kernel
def _attend(
    query,
    keys,
    values,
    tables,
    segments,
    tiles,
    output,
    normalizer,
    scaling,
    query_head,
    query_token,
    key_block,
    value_block,
    key_head,
    value_head,
    key_token,
    value_token,
    table_row,
    block_size,
    tokens,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
) -> None:
    """Neighboring tokens of one segment, all query heads of one key/value head."""
    number, kv = tl.program_id(0), tl.program_id(1)
    segment, offset = tl.load(tiles + number * 2), tl.load(tiles + number * 2 + 1)
    first, count = tl.load(segments + segment * 4), tl.load(segments + segment * 4 + 1)
    before, first_key = tl.load(segments + segment * 4 + 2), tl.load(segments + segment * 4 + 3).to(tl.int64)

    row = tl.arange(0, QUERIES)
    token, head = offset + row // GROUP, kv * GROUP + row % GROUP
    position = before + token
    dims, inside = tl.arange(0, DIM_PAD), tl.arange(0, KEYS)
    is_query = (row < QUERIES // GROUP * GROUP) & (token < count)
    valid_q = is_query[:, None] & (dims < DIM)[None, :]
    stream = (first + token).to(tl.int64)
    q = tl.load(query + (head * query_head + stream * query_token)[:, None] + dims[None, :], mask=valid_q, other=0.0)
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM_PAD], tl.float32)
    end = before + tl.minimum(offset + QUERIES // GROUP, count)
    begin = tl.maximum(before + offset - WINDOW + 1, 0) // KEYS if WINDOW > 0 else 0
    for tile in range(begin, tl.cdiv(end, KEYS)):
        key_position = tile * KEYS + inside
        block = tl.load(tables + segment * table_row + tile * KEYS // block_size).to(tl.int64)
        place = first_key + tile * KEYS % block_size + inside
        valid = (key_position < end)[:, None] & (dims < DIM)[None, :]
        from_keys = keys + block * key_block + kv * key_head + place[:, None] * key_token + dims[None, :]
        k = tl.load(from_keys, mask=valid, other=0.0)
        from_values = values + block * value_block + kv * value_head + place[:, None] * value_token + dims[None, :]
        v = tl.load(from_values, mask=valid, other=0.0)
        visible = key_position[None, :] <= position[:, None]
        if WINDOW > 0:
            visible = visible & (key_position[None, :] > position[:, None] - WINDOW)
        scores = tile_scores(q, k, visible, scaling, 0.0, False, "ieee")
        peak, total, mixed = add_tile(scores, v, peak, total, mixed, "ieee")
    share = tl.where(total == 0.0, 1.0, total)
    target = output + (stream * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(target, (mixed / share[:, None]).to(output.dtype.element_ty), mask=valid_q)
    tl.store(normalizer + head.to(tl.int64) * tokens + stream, peak + tl.log(share), mask=is_query)
