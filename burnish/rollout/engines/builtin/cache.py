"""The paged KV cache and the attention over it.

Keys and values live in blocks of 256 tokens, one pool per layer. Decoding attends in *block space*: every block in use
is one small product with its row's query, read in place, and a row's blocks are then combined by their log-sum-exp. A
block's product has a fixed shape, so its bits do not depend on what else is in the batch, and an absent block adds an
exact zero. Blocks that several rows share (full blocks of a common prompt) are gathered once per reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.attention import AttentionShape, causal_attention
from burnish.rollout.engines.builtin.blocks import BLOCK

BEYOND = 1 << 40  # the place of a hole: behind every row's end
MASK_STEP = 32  # a block is read up to its longest row, rounded up to this
ALIGNMENT = 64  # bytes, as torch aligns its own tensors

Blank = Callable[[tuple[int, ...], torch.dtype], Tensor]  # zeros of this size


@dataclass(frozen=True)
class CacheShape:
    """What one token costs: layers, key/value heads, head size, number format; and how many make a block."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block: int = BLOCK  # tokens

    @property
    def block_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.block * self.dtype.itemsize


class KVCache:
    """keys[layer], values[layer]: [blocks, kv_heads, block, head_dim]."""

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device, blank: Blank | None = None) -> None:
        size = (num_blocks, shape.kv_heads, shape.block, shape.head_dim)
        make = partial(_blank, device=device) if blank is None else blank
        self.keys = [make(size, shape.dtype) for _ in range(shape.layers)]
        self.values = [make(size, shape.dtype) for _ in range(shape.layers)]

    def move_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Whole blocks to other places, in every layer; no target is a source."""
        device = self.keys[0].device
        source, target = torch.tensor(list(sources), device=device), torch.tensor(list(targets), device=device)
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]

    def copy_block(self, source: int, targets: Sequence[int], tokens: int) -> None:
        """The first `tokens` entries of one block into others, in every layer."""
        index = torch.tensor(list(targets), device=self.keys[0].device)
        for pool in (*self.keys, *self.values):
            pool[index, :, :tokens] = pool[source, :, :tokens]


def _blank(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. They must be: what a mask hides is multiplied by an exact zero, and zero times a stray NaN is NaN."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # numpy asks the system for zeroed pages, which are backed when first written; torch.zeros would write them all.
    num_bytes = math.prod(size) * dtype.itemsize
    room = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return torch.from_numpy(room[start : start + num_bytes]).view(dtype).view(size)


class Segment(NamedTuple):
    """Some of a prompt's tokens. Those before `start`, a whole number of blocks, are in the cache already."""

    length: int
    start: int = 0
    blocks: Sequence[int] = ()  # of the whole prompt; padding has none


class PrefillContext:
    """Prompts or parts of them, packed; each attends to its own prompt, and its keys and values go to its blocks.

    With `by_block` the queries of a long prompt attend block by block, so that the bits are the same however the
    prompt is cut into passes.
    """

    def __init__(self, cache: KVCache | None, segments: list[Segment], by_block: bool) -> None:
        self.cache = cache
        self.segments = segments
        self.by_block = by_block

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        outputs = []
        first = 0
        for segment in self.segments:
            part = slice(first, first + segment.length)
            q, k, v = query[None, :, part], key[None, :, part], value[None, :, part]
            paged = self.cache is not None and len(segment.blocks) > 0
            if paged:
                self._write(layer, segment.blocks[segment.start // BLOCK :], k[0], v[0])
            if paged and (segment.start or (self.by_block and segment.length > BLOCK)):
                outputs += self._attend_by_block(layer, q, segment, shape)
            else:
                outputs.append(causal_attention(q, k, v, shape)[0])
            first += segment.length
        return torch.cat(outputs, dim=1).transpose(0, 1)

    def _attend_by_block(self, layer: int, query: Tensor, segment: Segment, shape: AttentionShape) -> list[Tensor]:
        """A block of queries at a time, against all keys up to its end, read from the cache."""
        outputs = []
        for offset in range(0, segment.length, BLOCK):
            asked = query[:, :, offset : offset + BLOCK]
            end = segment.start + offset + asked.shape[2]
            places = torch.tensor(segment.blocks[: -(-end // BLOCK)], device=query.device)
            pools = (self.cache.keys[layer], self.cache.values[layer])
            keys, values = (pool[places].transpose(0, 1).flatten(1, 2)[None, :, :end] for pool in pools)
            outputs.append(causal_attention(asked, keys, values, shape)[0])
        return outputs

    def _write(self, layer: int, blocks: Sequence[int], key: Tensor, value: Tensor) -> None:
        for number, block in enumerate(blocks[: -(-key.shape[1] // BLOCK)]):
            k = key[:, number * BLOCK : (number + 1) * BLOCK]
            v = value[:, number * BLOCK : (number + 1) * BLOCK]
            self.cache.keys[layer][block, :, : k.shape[1]] = k
            self.cache.values[layer][block, :, : v.shape[1]] = v


def room(tables: Sequence[Sequence[int]], lengths: Sequence[int], block: int) -> int:
    """How many more tokens the blocks of every row hold."""
    return min(len(table) * block - length for table, length in zip(tables, lengths, strict=True))


class DecodeContext:
    """One new token per row. Built when the set of rows or their blocks changes; `advance` moves every row by one."""

    def __init__(self, cache: KVCache, tables: list[list[int]], lengths: list[int], shared: set[int], pad: int) -> None:
        device = cache.keys[0].device
        self.cache = cache
        self.rows = len(tables)
        self.pad = pad  # rows appended to reach a fixed shape; they read and write nothing
        self.lengths = torch.tensor(lengths, device=device)  # tokens in the cache before this step
        entries = [(block, row, place) for row, table in enumerate(tables) for place, block in enumerate(table)]
        own = [entry for entry in entries if entry[0] not in shared]
        far = [entry for entry in entries if entry[0] in shared]
        self.span = max((block for block, _, _ in own), default=-1) + 1
        # Entries: the dense range [0, span) of blocks read in place, then a gathered copy per reader of a shared block.
        self.far_blocks = torch.tensor([block for block, _, _ in far], dtype=torch.int64, device=device)
        row_of = [0] * (self.span + len(far))
        place_of = [BEYOND] * (self.span + len(far))
        entry_of = [[-1] * max(map(len, tables)) for _ in tables]
        for entry, row, place in [*own, *((self.span + i, row, place) for i, (_, row, place) in enumerate(far))]:
            row_of[entry], place_of[entry], entry_of[row][place] = row, place, entry
        self.row_of, self.place_of = torch.tensor(row_of, device=device), torch.tensor(place_of, device=device)
        self.entry_of = torch.tensor(entry_of, device=device)
        self.write_block = torch.tensor(
            [table[n // BLOCK] for table, n in zip(tables, lengths, strict=True)], device=device
        )
        self._masks: dict[int | None, tuple[Tensor, Tensor, int]] = {}
        self.room = room(tables, lengths, BLOCK)

    def advance(self) -> None:
        self.lengths = self.lengths + 1
        self.room -= 1
        self._masks.clear()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        offset = self.lengths % BLOCK
        keys[self.write_block, :, offset] = key[:, : self.rows].transpose(0, 1)
        values[self.write_block, :, offset] = value[:, : self.rows].transpose(0, 1)

        heads, _, head_dim = query.shape
        grouped = query[:, : self.rows].transpose(0, 1).reshape(self.rows, key.shape[0], -1, head_dim)
        mask, alive, width = self._mask(shape.window)
        asked = grouped[self.row_of]  # [entries, kv_heads, group, d]
        near, far = slice(0, self.span), self.far_blocks
        parts = [block_attention(asked[near], keys[near, :, :width], values[near, :, :width], mask[near], shape)]
        if len(far):
            rest = slice(self.span, None)
            parts.append(block_attention(asked[rest], keys[far, :, :width], values[far, :, :width], mask[rest], shape))
        output, weight = (torch.cat(pair) for pair in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
        combined = self._combine(output, weight, alive).reshape(self.rows, heads, head_dim)
        if self.pad:
            combined = torch.cat([combined, combined.new_zeros(self.pad, heads, head_dim)])
        return combined

    def _mask(self, window: int | None) -> tuple[Tensor, Tensor, int]:
        """Additive mask [entries, 1, 1, width], which entries see anything, and how much of a block is read."""
        if window not in self._masks:
            end = self.lengths[self.row_of] + 1 - self.place_of * BLOCK  # the new token sees itself
            start = torch.zeros_like(end) if window is None else end - window
            width = min(BLOCK, -(-int(end.clamp(max=BLOCK).max()) // MASK_STEP) * MASK_STEP)
            place = torch.arange(width, device=end.device)
            seen = (place < end[:, None]) & (place >= start[:, None])
            alive = seen.any(-1)
            mask = torch.zeros(seen.shape, dtype=self.cache.keys[0].dtype, device=end.device)
            mask.masked_fill_(~seen & alive[:, None], float("-inf"))  # a dead entry stays finite and is dropped later
            self._masks[window] = (mask[:, None, None, :], alive, width)
        return self._masks[window]

    def _combine(self, output: Tensor, weight: Tensor, alive: Tensor) -> Tensor:
        """Sum a row's blocks, each weighted by its share of the row's softmax."""
        if self.entry_of.shape[1] == 1:
            return output[self.entry_of[:, 0]]
        present = (self.entry_of >= 0) & alive[self.entry_of]  # [rows, places]
        weight = torch.where(
            present[..., None, None], weight[self.entry_of], float("-inf")
        )  # [rows, places, kv, group]
        share = torch.exp(weight - weight.amax(1, keepdim=True))
        total = torch.zeros_like(share[:, 0])
        mixed = torch.zeros_like(output[self.entry_of[:, 0]], dtype=torch.float32)
        for place in range(self.entry_of.shape[1]):  # in order: absent blocks add exact zeros, whatever their number
            total = total + share[:, place]
            part = torch.where(present[:, place, None, None, None], output[self.entry_of[:, place]].float(), 0.0)
            mixed = mixed + share[:, place, ..., None] * part
        return (mixed / total[..., None]).to(output.dtype)


def block_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """[E, kv_heads, group, d] against one block each -> outputs and their log-sum-exp [E, kv_heads, group]."""
    scores = (query @ keys.transpose(-1, -2)).float().mul_(shape.scaling)
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores.add_(mask)
    weight = scores.logsumexp(-1)
    return scores.sub_(weight[..., None]).exp_().to(values.dtype) @ values, weight
