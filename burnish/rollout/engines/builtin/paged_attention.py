"""Attention over the paged cache, for prefill and decoding; each class implements `models.paged.PagedAttention`.

| class | pass | computed by |
|---|---|---|
| `BlockPrefill` | prefill, token-by-token engine | torch |
| `BlockDecode` | decoding, token-by-token engine | torch, in block space |
| `native.decode.CpuDecode` | the same on a CPU with a compiler | C (decode.c) |
| `DevicePrefill`, `DeviceDecode` | device loop | Triton, or torch as its reference (models/paged.py) |
| `Uncached` | scoring | torch |

*Block space*: every block in use is one small product with its sequence's query, read in place; a sequence's blocks are
then combined by their log-sum-exp. A block's product has a fixed shape, so its bits do not depend on the rest of the
batch, and an absent block adds an exact zero. Blocks that several sequences share are gathered once per sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.attention import AttentionShape, causal_attention
from burnish.models.kernels.paged import QUERIES
from burnish.models.paged import PagedSegments, SharedPrefixes, write_and_decode, write_and_prefill
from burnish.rollout.engines.builtin.kv_cache import KVCache, Segment, blocks_for

UNUSED = 1 << 40  # the position of an unused block: beyond the end of every sequence
MASK_STEP = 32  # a block is read up to its longest sequence, rounded up to this


class BlockPrefill:
    """Prompts or parts of them, packed; each attends to its own prompt, and its keys and values go to its blocks.

    `by_block`: queries of a long prompt attend block by block, so that the bits do not depend on how the prompt is
    split into passes.
    """

    def __init__(self, segments: list[Segment], by_block: bool) -> None:
        self.segments = segments
        self.by_block = by_block

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        block_size = keys.shape[2]
        outputs = []
        first = 0
        for segment in self.segments:
            by_block = self.by_block and segment.length > block_size
            part = slice(first, first + segment.length)
            q, k, v = query[None, :, part], key[None, :, part], value[None, :, part]
            if segment.blocks:
                for pool, new in ((keys, k[0]), (values, v[0])):
                    _write(pool, segment, new)
            if segment.blocks and (segment.start or by_block or segment.wholes):
                outputs += _attend_by_block(keys, values, q, segment, shape)
            else:
                outputs.append(causal_attention(q, k, v, shape)[0])
            first += segment.length
        return torch.cat(outputs, dim=1).transpose(0, 1)


def _attend_by_block(
    keys: Tensor, values: Tensor, query: Tensor, segment: Segment, shape: AttentionShape
) -> list[Tensor]:
    """A piece of queries at a time, against all keys up to its end, read from the cache."""
    outputs = []
    for first, end, whole in pieces(segment, keys.shape[2]):
        queries = query[:, :, first - segment.start : end - segment.start]
        k, v = cached(keys, values, segment, end if whole is None else whole[1])
        outputs.append(
            causal_attention(queries, k, v, shape)[0]
            if whole is None
            else whole_attention(queries, k, v, first, whole, shape)[0]
        )
    return outputs


def pieces(segment: Segment, block_size: int) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """(first, end) of the segment's queries in the prompt, cut at blocks and at whole images, and the image they show.

    The cuts depend on the prompt alone, so that results do not depend on how it is split into passes.
    """
    stop = segment.start + segment.length
    cuts = {*range(0, stop, block_size), *(edge for run in segment.wholes for edge in run)}
    edges = sorted({segment.start, stop, *(cut for cut in cuts if segment.start < cut < stop)})
    for first, end in itertools.pairwise(edges):
        yield first, end, next((run for run in segment.wholes if run[0] <= first < run[1]), None)


def cached(keys: Tensor, values: Tensor, segment: Segment, end: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a prompt's first `end` tokens, [1, kv_heads, end, d]."""
    blocks = torch.tensor(segment.blocks[: blocks_for(end, keys.shape[2])], device=keys.device)
    k, v = (pool[blocks].transpose(0, 1).flatten(1, 2)[None, :, :end] for pool in (keys, values))
    return k, v


def whole_attention(
    query: Tensor, key: Tensor, value: Tensor, first: int, whole: tuple[int, int], shape: AttentionShape
) -> Tensor:
    """Attention of tokens of an image, [1, heads, n, d] from position `first`: they see what is before them, within
    the layer's window, and all tokens of the image, at whole[0]..whole[1]."""
    place = torch.arange(key.shape[2], device=key.device)
    distance = first + torch.arange(query.shape[2], device=key.device)[:, None] - place
    visible = (distance >= 0) & (distance < (shape.window or key.shape[2]))
    visible = visible | ((place >= whole[0]) & (place < whole[1]))
    if shape.softcap is not None:
        raise ValueError("no family with a soft cap in its attention shows whole images")
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, visible, scale=shape.scaling, enable_gqa=grouped)


def _write(pool: Tensor, segment: Segment, new: Tensor) -> None:
    """New keys or values [kv_heads, length, d] of a segment into its blocks."""
    block_size = pool.shape[2]
    position, end = segment.start, segment.start + segment.length
    while position < end:
        number, offset = divmod(position, block_size)
        count = min(block_size - offset, end - position)
        source = new[:, position - segment.start : position - segment.start + count]
        pool[segment.blocks[number], :, offset : offset + count] = source
        position += count


class Uncached:
    """Whole sequences that leave nothing in the cache, for scoring."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.lengths = [segment.length for segment in segments]

    def attend(
        self,
        keys: Tensor | None,
        values: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        shape: AttentionShape,
    ) -> Tensor:
        q, k, v = (x[None].split(self.lengths, dim=2) for x in (query, key, value))
        parts = zip(self.segments, q, k, v, strict=True)
        return torch.cat([self._attend(*part, shape)[0] for part in parts], dim=1).transpose(0, 1)

    @staticmethod
    def _attend(segment: Segment, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        output = causal_attention(query, key, value, shape)
        for start, stop in segment.wholes:
            k, v = key[:, :, :stop], value[:, :, :stop]
            output[:, :, start:stop] = whole_attention(query[:, :, start:stop], k, v, start, (start, stop), shape)
        return output


def tokens_left(tables: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int) -> int:
    """How many more tokens fit into the blocks of every sequence."""
    return min(len(table) * block_size - length for table, length in zip(tables, lengths, strict=True))


def sequence_rows(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of each row its sequence and its place among that sequence's rows, where sequence i has counts[i] rows."""
    sizes = np.asarray(counts, dtype=np.int64)
    row_of = np.repeat(np.arange(len(sizes)), sizes)
    return row_of, np.arange(len(row_of)) - (sizes.cumsum() - sizes)[row_of]


class BlockDecode:
    """One new token per sequence, in block space.

    Built when the batch or its blocks change; `advance` moves every sequence by one token.
    """

    def __init__(self, cache: KVCache, tables: list[list[int]], lengths: list[int], shared: set[int], pad: int) -> None:
        device, block_size = cache.keys[0].device, cache.block_size
        self.batch_size = len(tables)
        self.pad = pad  # dummy sequences that fill up a fixed shape; they read and write nothing
        self.dtype = cache.keys[0].dtype
        self.block_size = block_size
        self.lengths = torch.tensor(lengths, device=device)  # tokens in the cache before this step
        entries = [(block, row, place) for row, table in enumerate(tables) for place, block in enumerate(table)]
        exclusive = [entry for entry in entries if entry[0] not in shared]
        gathered = [entry for entry in entries if entry[0] in shared]
        self.span = max((block for block, _, _ in exclusive), default=-1) + 1
        # Entries: blocks [0, span), read in place; then one gathered copy of a shared block per sequence.
        self.gathered = torch.tensor([block for block, _, _ in gathered], dtype=torch.int64, device=device)
        row_of = [0] * (self.span + len(gathered))
        place_of = [UNUSED] * (self.span + len(gathered))
        entry_of = [[-1] * max(map(len, tables)) for _ in tables]
        copies = ((self.span + i, row, place) for i, (_, row, place) in enumerate(gathered))
        for entry, row, place in [*exclusive, *copies]:
            row_of[entry], place_of[entry], entry_of[row][place] = row, place, entry
        self.row_of, self.place_of = torch.tensor(row_of, device=device), torch.tensor(place_of, device=device)
        self.entry_of = torch.tensor(entry_of, device=device)
        self.write_block = torch.tensor(
            [table[n // block_size] for table, n in zip(tables, lengths, strict=True)], device=device
        )
        self._masks: dict[int | None, tuple[Tensor, Tensor, int]] = {}
        self.tokens_left = tokens_left(tables, lengths, block_size)

    def advance(self) -> None:
        self.lengths = self.lengths + 1
        self.tokens_left -= 1
        self._masks.clear()

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        offset = self.lengths % self.block_size
        keys[self.write_block, :, offset] = key[:, : self.batch_size].transpose(0, 1)
        values[self.write_block, :, offset] = value[:, : self.batch_size].transpose(0, 1)

        heads, _, head_dim = query.shape
        grouped = query[:, : self.batch_size].transpose(0, 1).reshape(self.batch_size, key.shape[0], -1, head_dim)
        mask, visible, width = self._mask(shape.window)
        queries = grouped[self.row_of]  # [entries, kv_heads, group, d]
        near, far = slice(0, self.span), self.gathered
        parts = [block_attention(queries[near], keys[near, :, :width], values[near, :, :width], mask[near], shape)]
        if len(far):
            rest = slice(self.span, None)
            k, v = keys[far, :, :width], values[far, :, :width]
            parts.append(block_attention(queries[rest], k, v, mask[rest], shape))
        output, weight = (torch.cat(pair) for pair in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
        combined = self._combine(output, weight, visible).reshape(self.batch_size, heads, head_dim)
        if self.pad:
            combined = torch.cat([combined, combined.new_zeros(self.pad, heads, head_dim)])
        return combined

    def _mask(self, window: int | None) -> tuple[Tensor, Tensor, int]:
        """Additive mask [entries, 1, 1, width], which entries are visible at all, and how much of a block is read."""
        if window not in self._masks:
            end = self.lengths[self.row_of] + 1 - self.place_of * self.block_size  # the new token sees itself
            start = torch.zeros_like(end) if window is None else end - window
            width = min(self.block_size, -(-int(end.clamp(max=self.block_size).max()) // MASK_STEP) * MASK_STEP)
            place = torch.arange(width, device=end.device)
            seen = (place < end[:, None]) & (place >= start[:, None])
            visible = seen.any(-1)
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=end.device)
            # An entry without a visible token stays finite and is dropped by `_combine`.
            mask.masked_fill_(~seen & visible[:, None], float("-inf"))
            self._masks[window] = (mask[:, None, None, :], visible, width)
        return self._masks[window]

    def _combine(self, output: Tensor, weight: Tensor, visible: Tensor) -> Tensor:
        """Sum a sequence's blocks, each weighted by its share of the softmax."""
        if self.entry_of.shape[1] == 1:
            return output[self.entry_of[:, 0]]
        present = (self.entry_of >= 0) & visible[self.entry_of]  # [sequences, places]
        # [sequences, places, kv_heads, group]
        weight = torch.where(present[..., None, None], weight[self.entry_of], float("-inf"))
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


@dataclass(frozen=True)
class DeviceDecode:
    """One new token per sequence; everything is a tensor of fixed shape on the device."""

    slots: Tensor  # [B]: where its keys and values go, block * block_size + offset
    tables: Tensor  # [B, blocks] int32
    lengths: Tensor  # [B]: tokens it attends to, including itself
    triton: bool
    prefixes: SharedPrefixes | None = None  # to be read once for several sequences
    counters: Tensor | None = None  # [B * kv_heads] int32 zeros: one kernel less per layer
    spare: Tensor | None = None  # [B]: slots that no row reads, where rows are consecutive tokens of a sequence

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        where = (self.slots, self.tables, self.lengths)
        more = (self.prefixes, self.counters, self.spare)
        return write_and_decode(keys, values, query, key, value, *where, shape, self.triton, *more)


class DevicePrefill:
    """Prompts or parts of them, packed; each token attends to its own prompt up to itself."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], triton: bool) -> None:
        device, block_size = cache.keys[0].device, cache.block_size
        self.triton = triton
        self.wholes = any(segment.wholes for segment in segments)
        self.packed = segments
        width = max(blocks_for(s.start + s.length, block_size) for s in segments)
        tables = np.zeros((len(segments), width), dtype=np.int32)
        slots, spans, tiles, first = [], [], [], 0
        for number, segment in enumerate(segments):
            num_blocks = blocks_for(segment.start + segment.length, block_size)
            blocks = np.asarray(segment.blocks[:num_blocks], dtype=np.int64)
            tables[number, : len(blocks)] = blocks
            position = np.arange(segment.start, segment.start + segment.length)
            slots.append(blocks[position // block_size] * block_size + position % block_size)
            spans.append((first, segment.length, segment.start))
            tiles += [(number, offset) for offset in range(0, segment.length, QUERIES)]
            first += segment.length
        self.slots = torch.from_numpy(np.concatenate(slots)).to(device)
        arrays = (tables, np.array(spans, dtype=np.int32), np.array(tiles, dtype=np.int32))
        self.segments = PagedSegments(*(torch.from_numpy(array).to(device) for array in arrays))

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        output = write_and_prefill(keys, values, query, key, value, self.slots, self.segments, shape, self.triton)
        if self.wholes:
            self._attend_whole(output, keys, values, query, shape)
        return output

    def _attend_whole(self, output: Tensor, keys: Tensor, values: Tensor, query: Tensor, shape: AttentionShape) -> None:
        """Tokens of images again, which also see what comes after them."""
        at = 0
        for segment in self.packed:
            stop = segment.start + segment.length
            for whole in segment.wholes:
                first, end = max(whole[0], segment.start), min(whole[1], stop)
                if first < end:
                    rows = slice(at + first - segment.start, at + end - segment.start)
                    k, v = (part.to(query.dtype) for part in cached(keys, values, segment, whole[1]))
                    output[rows] = whole_attention(query[None, :, rows], k, v, first, whole, shape)[0].transpose(0, 1)
            at += segment.length
