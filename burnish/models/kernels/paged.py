"""Writing keys and values into a paged KV cache, and prefill attention over it.

A layer's cache is [num_blocks, kv_heads, block_size, head_dim]; a sequence's block table maps its tokens to blocks, so
sequences share a prompt by having the same blocks in their tables. Decoding is in decode.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.softmax import add_tile, load_tile, tile_scores
from burnish.models.kernels.tuning import DEFAULT, DOT, next_power, tile_size
from burnish.models.varlen import AttentionShape

QUERIES = 64  # queries per program in prefill


def write_kv(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write key and value [kv_heads, T, d] into the cache; slots [T] are block * block_size + offset."""
    kv_heads, tokens, dim = key.shape
    _write[(tokens,)](
        keys,
        values,
        key,
        value,
        slots,
        *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), keys.stride(0), keys.stride(1)),
        BLOCK=keys.shape[2],
        HEADS=kv_heads,
        HEADS_PAD=next_power(kv_heads),
        DIM=dim,
        DIM_PAD=next_power(dim),
    )


def prefill_attention(
    query: Tensor,  # [heads, T, d], the segments' new tokens one after the other
    keys: Tensor,
    values: Tensor,
    tables: Tensor,  # [segments, blocks of the longest] int32
    segments: Tensor,  # [segments, 3] int32: offset of its tokens in the stream, their number, tokens cached before
    tiles: Tensor,  # [tiles, 2] int32: segment, first token of the tile inside it
    shape: AttentionShape,
) -> Tensor:
    """[T, heads, d]: every new token attends to its prompt up to itself, all read from the cache."""
    heads, tokens, dim = query.shape
    kv_heads, block = keys.shape[1], keys.shape[2]
    output = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    _prefill[(len(tiles), heads)](
        query,
        keys,
        values,
        tables,
        segments,
        tiles,
        output,
        shape.scaling,
        shape.softcap or 0.0,
        *(query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), tables.stride(0)),
        HEADS=heads,
        GROUP=heads // kv_heads,
        QUERIES=QUERIES,
        DIM=dim,
        DIM_PAD=max(DOT, next_power(dim)),
        BLOCK=block,
        TILE=tile_size(block, dim, query.dtype),
        WINDOW=shape.window or 0,
        CAPPED=shape.softcap is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_stages=DEFAULT.stages,
    )
    return output


@kernel
def _write(
    keys,
    values,
    key,
    value,
    slots,
    key_head,
    key_token,
    value_head,
    value_token,
    cache_block,
    cache_head,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
) -> None:
    """One token: keys and values of all heads."""
    token = tl.program_id(0)
    slot = tl.load(slots + token).to(tl.int64)
    heads, dims = tl.arange(0, HEADS_PAD)[:, None], tl.arange(0, DIM_PAD)[None, :]
    valid = (heads < HEADS) & (dims < DIM)
    target = (slot // BLOCK) * cache_block + heads * cache_head + (slot % BLOCK) * DIM + dims
    tl.store(keys + target, tl.load(key + heads * key_head + token * key_token + dims, mask=valid), mask=valid)
    tl.store(values + target, tl.load(value + heads * value_head + token * value_token + dims, mask=valid), mask=valid)


@kernel
def _prefill(
    query,
    keys,
    values,
    tables,
    segments,
    tiles,
    output,
    scaling,
    softcap,
    query_head,
    query_token,
    cache_block,
    cache_head,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """QUERIES neighboring tokens of one segment, one head."""
    number, head = tl.program_id(0), tl.program_id(1)
    segment, offset = tl.load(tiles + number * 2), tl.load(tiles + number * 2 + 1)
    first, count = tl.load(segments + segment * 3), tl.load(segments + segment * 3 + 1)
    before = tl.load(segments + segment * 3 + 2)

    tokens_in_segment = offset + tl.arange(0, QUERIES)
    query_position = before + tokens_in_segment
    dims, inside = tl.arange(0, DIM_PAD), tl.arange(0, TILE)
    valid_q = (tokens_in_segment < count)[:, None] & (dims < DIM)[None, :]
    stream = (first + tokens_in_segment).to(tl.int64)
    q = tl.load(query + head * query_head + stream[:, None] * query_token + dims[None, :], mask=valid_q, other=0.0)
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM_PAD], tl.float32)
    end = before + tl.minimum(offset + QUERIES, count)
    begin = tl.maximum(before + offset - WINDOW + 1, 0) // TILE if WINDOW > 0 else 0
    for tile in range(begin, tl.cdiv(end, TILE)):
        key_position = tile * TILE + inside
        block = tl.load(tables + segment * table_row + tile * TILE // BLOCK).to(tl.int64)
        base = block * cache_block + (head // GROUP) * cache_head + (key_position % BLOCK) * DIM
        k, v = load_tile(keys, values, base, key_position < end, dims, DIM, q.dtype)
        visible = key_position[None, :] <= query_position[:, None]
        if WINDOW > 0:
            visible = visible & (key_position[None, :] > query_position[:, None] - WINDOW)
        scores = tile_scores(q, k, visible, scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = add_tile(scores, v, peak, total, mixed, PRECISION)
    target = output + (stream[:, None] * HEADS + head) * DIM + dims[None, :]
    tl.store(target, (mixed / total[:, None]).to(output.dtype.element_ty), mask=valid_q)
