"""Attention over a paged cache on a device: the function registered with transformers and the products behind it.

Each product exists twice, in Triton (models/kernels/paged.py) and here in plain torch, which says what it computes and
runs where there is no Triton. Everything a product needs is a tensor of fixed shape, so a CUDA graph can hold it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from burnish.models.kernels import paged as kernels
from burnish.models.varlen import AttentionShape

KEYS, VALUES = "paged_keys", "paged_values"  # where an attention module finds its layer's part of the cache


class Pages(Protocol):
    """What a runner passes through the model, once per forward."""

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """The cache of a layer; query [heads, T, d], key and value [kv_heads, T, d] -> [T, heads, d]."""
        ...


class Segments(NamedTuple):
    """Prompts, or parts of them, packed into one stream: what the prefill product reads, all int32."""

    tables: Tensor  # [segments, blocks of the longest]
    spans: Tensor  # [segments, 3]: where its tokens begin in the stream, how many, how many came before
    tiles: Tensor  # [tiles, 2]: segment, first token of the tile inside it


def bind_cache(model: nn.Module, keys: list[Tensor], values: list[Tensor]) -> None:
    """Give every attention module its layer's cache. A module that knows its own needs no number of its layer, so that
    torch.compile makes one program for all layers."""
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
) -> Tensor:
    """One new token per row: its keys and values go to `slots`, and it sees `lengths` tokens of its table."""
    operation = _decode_in_triton if triton else _decode_in_torch
    return operation(
        keys, values, query, key, value, slots, tables, lengths, shape.scaling, shape.window or 0, shape.softcap or 0.0
    )


def write_and_prefill(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    segments: Segments,
    shape: AttentionShape,
    triton: bool,
) -> Tensor:
    """Many new tokens per prompt; each sees its own prompt up to itself, also what was in the cache before."""
    if triton:
        kernels.write_kv(keys, values, key, value, slots)
        return kernels.prefill_attention(query, keys, values, *segments, shape)
    write(keys, values, key, value, slots)
    outputs = []
    for table, (first, count, before) in zip(segments.tables, segments.spans.tolist(), strict=True):
        asked = query[:, first : first + count].transpose(0, 1)
        seen = before + 1 + torch.arange(count, device=query.device)
        outputs.append(attend_tables(asked, keys, values, table.expand(count, -1), seen, shape))
    return torch.cat(outputs)


def write(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    block, place = slots // keys.shape[2], slots % keys.shape[2]
    keys[block, :, place] = key.transpose(0, 1)
    values[block, :, place] = value.transpose(0, 1)


def attend_tables(
    query: Tensor,  # [rows, heads, d]
    keys: Tensor,
    values: Tensor,
    tables: Tensor,  # [rows, blocks]
    lengths: Tensor,  # [rows]
    shape: AttentionShape,
) -> Tensor:
    """Each row's query against the first `lengths` tokens of its table, [rows, heads, d]."""
    rows, heads, dim = query.shape
    kv_heads, block = keys.shape[1], keys.shape[2]
    k, v = (pool[tables.long()].transpose(1, 2).reshape(rows, kv_heads, -1, dim) for pool in (keys, values))
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    scores = (grouped @ k.transpose(-1, -2)).float() * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    place = torch.arange(tables.shape[1] * block, device=query.device)
    seen = place < lengths[:, None]
    if shape.window is not None:
        seen = seen & (place >= lengths[:, None] - shape.window)
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).reshape(rows, heads, dim)


def _decode_in_torch(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scaling: float,
    window: int,
    softcap: float,
) -> Tensor:
    write(keys, values, key, value, slots)
    shape = AttentionShape(scaling, window or None, softcap or None)
    return attend_tables(query.transpose(0, 1), keys, values, tables, lengths, shape)


# One operation to torch.compile, which need not look inside. It does write to keys and values, and does not say so:
# torch.compile answers a declared write to tensors that share memory by copying that memory, here the whole cache, back
# and forth. Nothing else in a layer reads or writes a layer's cache, so nothing can come in between.
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
    scaling: float,
    window: int,
    softcap: float,
) -> Tensor:
    shape = AttentionShape(scaling, window or None, softcap or None)
    return kernels.write_and_attend(keys, values, query, key, value, slots, tables, lengths, shape)


@_decode_in_triton.register_fake
def _decode_as_shape(keys: Tensor, values: Tensor, query: Tensor, *rest: object) -> Tensor:
    return query.new_empty(query.shape[1], query.shape[0], query.shape[2])
