"""Attention over the paged KV cache: the interface, and the products behind it on a device.

A layer's cache is two tensors [num_blocks, kv_heads, block_size, head_dim]; every implementation of `PagedAttention`
reads the block size from their shape. The implementations are in rollout/engines/builtin/paged_attention.py.

Each product here exists twice: in Triton (models/kernels/decode.py, paged.py) and in plain torch, which is its
reference and runs without Triton. All inputs are tensors of fixed shape, so a CUDA graph can capture the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from burnish.models.kernels import decode
from burnish.models.kernels import paged as kernels
from burnish.models.varlen import AttentionShape

KEYS, VALUES = "paged_keys", "paged_values"  # attributes of an attention module: its layer's part of the cache


class PagedAttention(Protocol):
    """What an engine passes through the model once per forward: it knows which sequence each token belongs to."""

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """Write this forward's keys and values into the layer's cache and attend over it.

        keys and values are the layer's cache; query [heads, T, d], key and value [kv_heads, T, d] -> [T, heads, d].
        """
        ...


class PagedSegments(NamedTuple):
    """Prompts, or parts of them, packed into one stream: the inputs of the prefill product, all int32."""

    tables: Tensor  # [segments, blocks of the longest]
    spans: Tensor  # [segments, 3]: offset of its tokens in the stream, their number, tokens cached before them
    tiles: Tensor  # [tiles, 2]: segment, first token of the tile inside it


class SharedPrefixes(NamedTuple):
    """Clusters of rows whose tables begin with the same blocks: decoding reads those once per cluster. All int32."""

    clusters: Tensor  # [clusters, members] rows, from the left; -1: none
    prefix: Tensor  # [clusters] tokens of the common blocks; 0: no cluster
    shared: Tensor  # [rows] the prefix of the row's cluster; 0: in none


def bind_cache(model: nn.Module, keys: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Give every attention module its layer's cache (None releases it).

    Modules hold their own cache, instead of looking it up by layer number, so that torch.compile produces one program
    for all layers.
    """
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if layer is not None and hasattr(module, "o_proj"):
            setattr(module, KEYS, keys[layer])
            setattr(module, VALUES, values[layer])


def write_and_decode(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    tables: Tensor,
    lengths: Tensor,
    shape: AttentionShape,
    triton: bool,
    prefixes: SharedPrefixes | None = None,
    counters: Tensor | None = None,
    spare: Tensor | None = None,
) -> Tensor:
    """One new token per row: its keys and values go to `slots`; it attends to `lengths` tokens of its table.

    `prefixes` change what is read how often, and the result only up to rounding. A row that has ended attends to its
    newest token alone (length 1); it may stay in its cluster. `counters` [rows * kv_heads] int32 save the Triton
    kernels a launch; they are zero before and after, and no two calls may use them at the same time. `spare` [rows]:
    slots that no row reads, given where rows are consecutive tokens of a sequence, which read each other's keys and
    values.
    """
    operation = _decode_in_triton if triton else _decode_in_torch
    clusters, prefix, shared = prefixes or (None, None, None)
    where = (slots, tables, lengths, clusters, prefix, shared, counters, spare)
    return operation(keys, values, query, key, value, *where, shape.scaling, shape.window or 0, shape.softcap or 0.0)


def write_and_prefill(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    segments: PagedSegments,
    shape: AttentionShape,
    triton: bool,
) -> Tensor:
    """Many new tokens per prompt; each attends to its prompt up to itself, including what was cached before."""
    if triton:
        kernels.write_kv(keys, values, key, value, slots)
        return kernels.prefill_attention(query, keys, values, *segments, shape)
    write(keys, values, key, value, slots)
    outputs = []
    for table, (first, count, before) in zip(segments.tables, segments.spans.tolist(), strict=True):
        queries = query[:, first : first + count].transpose(0, 1)
        lengths = before + 1 + torch.arange(count, device=query.device)
        outputs.append(attend_tables(queries, keys, values, table.expand(count, -1), lengths, shape))
    return torch.cat(outputs)


def write(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    block, offset = slots // keys.shape[2], slots % keys.shape[2]
    keys[block, :, offset] = key.transpose(0, 1).to(keys.dtype)
    values[block, :, offset] = value.transpose(0, 1).to(values.dtype)


def gather(pool: Tensor, tables: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, kv_heads, blocks, block_size, d] of the cache, in the dtype of the queries."""
    return pool[tables.long()].transpose(1, 2).to(dtype)


def attend_tables(
    query: Tensor,  # [rows, heads, d]
    keys: Tensor,
    values: Tensor,
    tables: Tensor,  # [rows, blocks]
    lengths: Tensor,  # [rows]
    shape: AttentionShape,
) -> Tensor:
    """Each query against the first `lengths` tokens of its table, [rows, heads, d]."""
    rows, heads, dim = query.shape
    kv_heads, block_size = keys.shape[1], keys.shape[2]
    k, v = (gather(pool, tables, query.dtype).reshape(rows, kv_heads, -1, dim) for pool in (keys, values))
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    scores = (grouped @ k.transpose(-1, -2)).float() * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    position = torch.arange(tables.shape[1] * block_size, device=query.device)
    visible = position < lengths[:, None]
    if shape.window is not None:
        visible = visible & (position >= lengths[:, None] - shape.window)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).reshape(rows, heads, dim)


def attend_shared(
    query: Tensor,  # [rows, heads, d]
    keys: Tensor,
    values: Tensor,
    tables: Tensor,  # [rows, blocks]
    lengths: Tensor,  # [rows]
    shape: AttentionShape,
    prefixes: SharedPrefixes,
) -> Tensor:
    """The same as `attend_tables` in two phases: clusters over their prefixes, then every row over the rest.

    Results over disjoint keys are merged by their log-sum-exp.
    """
    rows, heads, dim = query.shape
    kv_heads, size = keys.shape[1], tables.shape[1] * keys.shape[2]
    clusters, prefix, shared = (part.long() for part in prefixes)
    place = torch.arange(size, device=query.device)
    start = torch.zeros_like(lengths) if shape.window is None else lengths - shape.window
    grouped = query.reshape(rows, kv_heads, -1, dim)

    # members as further queries of one key/value head: [clusters, kv_heads, members, group, d]
    row = clusters.clamp(min=0)
    takes_part = (clusters >= 0) & (lengths[row] > prefix[:, None])
    visible = takes_part[..., None] & (place < prefix[:, None, None]) & (place >= start[row][..., None])
    common = grouped[row].transpose(1, 2)
    first = _attend(common, keys, values, tables[row[:, 0]], visible[:, None, :, None], shape)
    # Rows beyond the last one take what is written for members that are none.
    target = torch.where(takes_part, clusters, rows).flatten()
    output, weight = (x.transpose(1, 2).flatten(0, 1) for x in first)
    output = output.new_zeros(rows + 1, *output.shape[1:]).index_copy(0, target, output)[:rows]
    weight = weight.new_full((rows + 1, *weight.shape[1:]), float("-inf")).index_copy(0, target, weight)[:rows]

    begin = torch.where(lengths > shared, shared, 0).maximum(start)
    visible = (place >= begin[:, None]) & (place < lengths[:, None])
    rest = _attend(grouped[:, :, None], keys, values, tables, visible[:, None, None, None], shape)
    outputs, weights = torch.stack([output, rest[0][:, :, 0]]), torch.stack([weight, rest[1][:, :, 0]])
    return (outputs * weights.softmax(0)[..., None]).sum(0).to(query.dtype).reshape(rows, heads, dim)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, visible: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """[N, kv_heads, members, group, d] against N tables: outputs, and their log-sum-exp; 0 and -inf where nothing is
    visible."""
    number, kv_heads, _, _, dim = query.shape
    k, v = (gather(pool, tables, query.dtype).reshape(number, kv_heads, 1, -1, dim) for pool in (keys, values))
    scores = (query @ k.transpose(-1, -2)).float() * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    weight = scores.logsumexp(-1)
    share = torch.where(visible, torch.exp(scores - weight[..., None]), 0.0)
    return share @ v.float(), weight


def _decode_in_torch(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    tables: Tensor,
    lengths: Tensor,
    clusters: Tensor | None,
    prefix: Tensor | None,
    shared: Tensor | None,
    counters: Tensor | None,
    spare: Tensor | None,
    scaling: float,
    window: int,
    softcap: float,
) -> Tensor:
    write(keys, values, key, value, slots)
    shape = AttentionShape(scaling, window or None, softcap or None)
    where = (query.transpose(0, 1), keys, values, tables, lengths, shape)
    if clusters is None or prefix is None or shared is None:
        return attend_tables(*where)
    return attend_shared(*where, SharedPrefixes(clusters, prefix, shared))


# An opaque operation for torch.compile. It writes to keys and values without declaring it: for a declared mutation of
# tensors that share memory, torch.compile would copy that memory, here the whole cache, back and forth. This is safe
# because nothing else in a layer reads or writes the layer's cache.
@torch.library.custom_op("burnish::write_and_decode", mutates_args=())
def _decode_in_triton(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    tables: Tensor,
    lengths: Tensor,
    clusters: Tensor | None,
    prefix: Tensor | None,
    shared: Tensor | None,
    counters: Tensor | None,
    spare: Tensor | None,
    scaling: float,
    window: int,
    softcap: float,
) -> Tensor:
    if spare is not None:  # all rows are written before one is read: the kernel of a row writes only its own token
        kernels.write_kv(keys, values, key, value, slots)
        slots = spare
    shape = AttentionShape(scaling, window or None, softcap or None)
    where = (slots, tables, lengths, shape, clusters, prefix, shared, counters)
    return decode.write_and_attend(keys, values, query, key, value, *where)


@_decode_in_triton.register_fake
def _decode_fake(keys: Tensor, values: Tensor, query: Tensor, *rest: object) -> Tensor:
    return query.new_empty(query.shape[1], query.shape[0], query.shape[2])
