"""Attention over a paged KV cache in Triton, for decoding and prefill, and writing new keys and values into the cache.

A layer's cache is [num_blocks, kv_heads, block_size, head_dim]; a sequence's block table maps its tokens to blocks, so
sequences share a prompt by having the same blocks in their tables. The query heads of one key/value head are one
program, padded to the tile size of tensor cores; long contexts are split over several programs and combined after.

Shared prefixes are attended to first, by a kernel whose programs have the queries of all rows of a cluster, so that the
prefix is read once. The kernel of the rows continues from there: results over disjoint keys are merged by their
log-sum-exp.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.varlen import AttentionShape

DOT = 16  # minimum rows and columns of tl.dot
TILE_BYTES = 1 << 15  # of one tile of keys: several must fit into shared memory
QUERIES = 64  # queries per program in prefill
MAX_SPLITS = 64
MAX_PREFIX_SPLITS = 8  # each costs float32 results of all queries, written and read again
MAX_MEMBERS = 16  # rows of a cluster: the usual number of responses to a prompt
CLUSTER_QUERIES = 128  # queries of a cluster; more would make its product the bottleneck instead of memory


class Tuning(NamedTuple):
    """Choices that depend on the GPU and on the size of the heads, but change no result beyond rounding."""

    tile: int = 64  # keys per tile, fewer for large heads (TILE_BYTES)
    stages: int = 2  # tiles in flight
    warps: int = 4
    programs: int = 1024  # to split contexts into: enough to fill the largest GPUs several times over
    busy: int = 264  # programs that keep a GPU busy: two per multiprocessor
    short: int = 512  # contexts below this are not split if the GPU is busy anyway
    prefix_stages: int = 2  # of programs of shared prefixes
    prefix_warps: int | None = None  # None: as many as hold the results in registers
    prefix_programs: int = 264  # to split shared prefixes into


DEFAULT = Tuning()
# (compute capability, head size, key/value heads) -> the best that bench/attention.py has found. Empty until measured.
TUNED: dict[tuple[tuple[int, int], int, int], Tuning] = {}


def tuning(device: torch.device, dim: int, kv_heads: int) -> Tuning:
    """The entry of the device, or the default where nothing was measured."""
    return TUNED.get((capability(device), dim, kv_heads), DEFAULT)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) in Triton's interpreter."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


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
        HEADS_PAD=_next_power(kv_heads),
        DIM=dim,
        DIM_PAD=_next_power(dim),
    )


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
    group, choice = heads // kv_heads, tuning(query.device, dim, kv_heads)
    splits = num_splits(rows * kv_heads, tables.shape[1] * block, choice)
    output = torch.empty(rows, heads, dim, dtype=query.dtype, device=query.device)
    if splits == 1:
        parts, weights = output, output  # one program per row: nothing to combine
    else:
        parts = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device)
        weights = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    constants = {
        "HEADS": heads,
        "GROUP": group,
        "DIM": dim,
        "DIM_PAD": max(DOT, _next_power(dim)),
        "BLOCK": block,
        "TILE": _tile(block, dim, query.dtype, choice),
        "WINDOW": shape.window or 0,
        "CAPPED": shape.softcap is not None,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
    scalars = shape.scaling, shape.softcap or 0.0
    prefix_splits, prefix_parts, prefix_weights = 0, output, output
    if clusters is not None and prefix is not None and shared is not None and len(clusters) > 0:
        members = clusters.shape[1]
        # A batch that is shared well has as many clusters as its rows fill.
        programs = max(1, rows // members) * kv_heads
        prefix_splits = num_prefix_splits(programs, tables.shape[1] * block, choice)
        prefix_parts = torch.empty(rows, heads, prefix_splits, dim, dtype=torch.float32, device=query.device)
        prefix_weights = torch.empty(rows, heads, prefix_splits, dtype=torch.float32, device=query.device)
        queries = max(DOT, _next_power(members * group))
        _decode_prefix[(len(clusters), kv_heads, prefix_splits)](
            query,
            keys,
            values,
            tables,
            lengths,
            clusters,
            prefix,
            prefix_parts,
            prefix_weights,
            *scalars,
            *(query.stride(0), query.stride(1)),
            *(keys.stride(0), keys.stride(1), tables.stride(0)),
            **constants,
            MEMBERS=members,
            QUERIES_PAD=queries,
            SPLITS=prefix_splits,
            num_stages=choice.prefix_stages,
            num_warps=choice.prefix_warps or prefix_warps(queries, dim),
        )
    _decode[(rows, kv_heads, splits)](
        query,
        keys,
        values,
        key,
        value,
        slots,
        tables,
        lengths,
        lengths if shared is None else shared,
        prefix_parts,
        prefix_weights,
        parts,
        weights,
        *scalars,
        *(query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1)),
        *(keys.stride(0), keys.stride(1), tables.stride(0)),
        **constants,
        GROUP_PAD=max(DOT, _next_power(group)),
        SPLITS=splits,
        PREFIX_SPLITS=prefix_splits,
        num_stages=choice.stages,
        num_warps=choice.warps,
    )
    if splits > 1:
        _combine[(rows, heads)](
            parts,
            weights,
            output,
            HEADS=heads,
            SPLITS=splits,
            SPLITS_PAD=_next_power(splits),
            DIM=dim,
            DIM_PAD=_next_power(dim),
        )
    return output


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
        DIM_PAD=max(DOT, _next_power(dim)),
        BLOCK=block,
        TILE=_tile(block, dim, query.dtype),
        WINDOW=shape.window or 0,
        CAPPED=shape.softcap is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_stages=DEFAULT.stages,
    )
    return output


def num_splits(programs: int, longest: int, choice: Tuning = DEFAULT) -> int:
    """Parts that a context is split into, so that few rows still fill the GPU; a power of two."""
    if programs >= choice.busy and longest < choice.short:
        return 1
    splits = min(MAX_SPLITS, choice.programs // max(1, programs), longest // choice.tile)
    return 1 << max(0, splits.bit_length() - 1)


def num_prefix_splits(programs: int, longest: int, choice: Tuning = DEFAULT) -> int:
    """Parts that a shared prefix is split into: no more than fill the GPU; a power of two."""
    splits = min(
        MAX_PREFIX_SPLITS, -(-choice.prefix_programs // max(1, programs)), max(1, longest // (2 * choice.tile))
    )
    return 1 << (splits.bit_length() - 1)


def prefix_warps(queries: int, dim: int) -> int:
    """Warps of a program that has so many queries: their results are kept in registers."""
    return 4 if queries * _next_power(dim) < 64 * 128 else 8


def num_members(group: int) -> int:
    """Rows of a cluster, where `group` query heads share a key/value head."""
    return max(2, min(MAX_MEMBERS, CLUSTER_QUERIES // group))


def _tile(block: int, dim: int, dtype: torch.dtype, choice: Tuning = DEFAULT) -> int:
    """Keys per tile: divides a block and stays within TILE_BYTES."""
    return min(choice.tile, block, max(DOT, TILE_BYTES // (_next_power(dim) * dtype.itemsize)))


def _next_power(number: int) -> int:
    """The next power of two, as tl.arange needs it."""
    return 1 << (number - 1).bit_length()


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
    first = start // TILE
    share = tl.cdiv(tl.cdiv(cached, TILE) - first, SPLITS)
    begin = first + split * share
    end = tl.minimum(begin + share, tl.cdiv(cached, TILE))

    members, dims = tl.arange(0, GROUP_PAD), tl.arange(0, DIM_PAD)
    head = kv * GROUP + members
    valid_q = (members < GROUP)[:, None] & (dims < DIM)[None, :]
    q = tl.load(query + head[:, None] * query_head + row * query_row + dims[None, :], mask=valid_q, other=0.0)
    slot = tl.load(slots + row).to(tl.int64)
    target = (slot // BLOCK) * cache_block + kv * cache_head + (slot % BLOCK) * DIM
    new_key = _load_and_store(key + kv * key_head + row * key_row, keys + target, split == 0, dims, DIM)
    new_value = _load_and_store(value + kv * value_head + row * value_row, values + target, split == 0, dims, DIM)
    peak, total, mixed = _newest(q, new_key, new_value, split == 0, scaling, softcap, GROUP_PAD, CAPPED)
    for part_number in tl.static_range(PREFIX_SPLITS):
        entry = (row * HEADS + head) * PREFIX_SPLITS + part_number
        merged = tl.where(split == 0, tl.where(before > 0, GROUP, 0), 0)
        weight = tl.load(prefix_weights + entry, mask=members < merged, other=float("-inf"))
        known = (weight > float("-inf"))[:, None] & (dims < DIM)[None, :]
        part = tl.load(prefix_parts + entry[:, None] * DIM + dims[None, :], mask=known, other=0.0)
        peak, total, mixed = _merge(weight, part, peak, total, mixed)
    for tile in range(begin, end):
        key_position = tile * TILE + tl.arange(0, TILE)
        visible = (key_position >= start) & (key_position < cached)
        block = tl.load(tables + row * table_row + tile * TILE // BLOCK).to(tl.int64)
        base = block * cache_block + kv * cache_head + (key_position % BLOCK) * DIM
        valid = visible[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + base[:, None] + dims[None, :], mask=valid, other=0.0)
        v = tl.load(values + base[:, None] + dims[None, :], mask=valid, other=0.0)
        scores = _scores(q, k, visible[None, :], scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = _mix(scores, v, peak, total, mixed, PRECISION)

    entry = (row * HEADS + head) * SPLITS + split
    part = (mixed / tl.where(total == 0.0, 1.0, total)[:, None]).to(parts.dtype.element_ty)
    tl.store(parts + entry[:, None] * DIM + dims[None, :], part, mask=valid_q)
    if SPLITS > 1:
        weight = tl.where(total == 0.0, float("-inf"), peak + tl.log(total))
        tl.store(weights + entry, weight, mask=members < GROUP)


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

    first = tl.min(start, 0) // TILE
    share = tl.cdiv(tl.cdiv(tokens, TILE) - first, SPLITS)
    begin = first + split * share
    end = tl.minimum(begin + share, tl.cdiv(tokens, TILE))
    table = tables + tl.load(clusters + cluster * MEMBERS) * table_row  # all members have these blocks
    peak = tl.full([QUERIES_PAD], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES_PAD], tl.float32)
    mixed = tl.zeros([QUERIES_PAD, DIM_PAD], tl.float32)
    for tile in range(begin, end):
        key_position = tile * TILE + tl.arange(0, TILE)
        block = tl.load(table + tile * TILE // BLOCK).to(tl.int64)
        base = block * cache_block + kv * cache_head + (key_position % BLOCK) * DIM
        valid = (key_position < tokens)[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + base[:, None] + dims[None, :], mask=valid, other=0.0)
        v = tl.load(values + base[:, None] + dims[None, :], mask=valid, other=0.0)
        visible = (key_position[None, :] >= start[:, None]) & (key_position < tokens)[None, :]
        scores = _scores(q, k, visible, scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = _mix(scores, v, peak, total, mixed, PRECISION)

    entry = (row * HEADS + head) * SPLITS + split
    part = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(parts + entry[:, None] * DIM + dims[None, :], part, mask=valid_q & (total > 0.0)[:, None])
    weight = tl.where(total == 0.0, float("-inf"), peak + tl.log(total))
    tl.store(weights + entry, weight, mask=takes_part)


@kernel
def _merge(weight, part, peak, total, mixed):
    """Add results over other keys, of this log-sum-exp (-inf: none), to the running softmax."""
    higher = tl.maximum(peak, weight)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade, share = tl.exp(peak - finite), tl.exp(weight - finite)
    return higher, total * fade + share, mixed * fade[:, None] + part * share[:, None]


@kernel
def _load_and_store(source, target, owns, dims, DIM: tl.constexpr):
    """Load a vector; the program that owns it also stores it into the cache."""
    vector = tl.load(source + dims, mask=dims < DIM, other=0.0)
    tl.store(target + dims, vector, mask=dims < tl.where(owns, DIM, 0))
    return vector


@kernel
def _newest(q, key, value, owns, scaling, softcap, GROUP_PAD: tl.constexpr, CAPPED: tl.constexpr):
    """Softmax state (maximum, sum, weighted values) after the newest key, or empty if another program owns it."""
    score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scaling
    if CAPPED:
        score = _capped(score, softcap)
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
        valid = (key_position < end)[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + base[:, None] + dims[None, :], mask=valid, other=0.0)
        v = tl.load(values + base[:, None] + dims[None, :], mask=valid, other=0.0)
        visible = key_position[None, :] <= query_position[:, None]
        if WINDOW > 0:
            visible = visible & (key_position[None, :] > query_position[:, None] - WINDOW)
        scores = _scores(q, k, visible, scaling, softcap, CAPPED, PRECISION)
        peak, total, mixed = _mix(scores, v, peak, total, mixed, PRECISION)
    target = output + (stream[:, None] * HEADS + head) * DIM + dims[None, :]
    tl.store(target, (mixed / total[:, None]).to(output.dtype.element_ty), mask=valid_q)


@kernel
def _capped(scores, softcap):
    return (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap  # tanh


@kernel
def _scores(q, k, visible, scaling, softcap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Scaled and capped scores; -inf where masked."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
    if CAPPED:
        scores = _capped(scores, softcap)
    return tl.where(visible, scores, float("-inf"))


@kernel
def _mix(scores, v, peak, total, mixed, PRECISION: tl.constexpr):
    """Add a tile to the running softmax. A query without a visible key stays at zero."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp(peak - finite)
    part = tl.exp(scores - finite[:, None])
    total = total * fade + tl.sum(part, 1)
    mixed = mixed * fade[:, None] + tl.dot(part.to(v.dtype), v, input_precision=PRECISION)
    return higher, total, mixed
