"""Attention of the device loop in invariant mode: decoding, prefill and scoring by the trainer's kernel.

All of them attend to keys in tiles of one size, in order, from a sequence's first token on. So a token's bits depend on
its own sequence alone, whether it is decoded, prefilled or trained on, and in which batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from burnish.models.invariant.functions import packed_attention
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels.invariant import Spans, tokens_per_tile
from burnish.models.kernels.paged import write_kv
from burnish.models.varlen import AttentionShape, Segments
from burnish.rollout.engines.builtin.kv_cache import KVCache, Segment, blocks_for


class InvariantPaged:
    """New tokens of some sequences: their keys and values go into the cache, then they attend to it."""

    def __init__(self, slots: Tensor, spans: Spans) -> None:
        self.slots = slots  # [T]: where the new tokens go
        self.spans = spans

    @staticmethod
    def decode(slots: Tensor, tables: Tensor, lengths: Tensor, block_size: int) -> InvariantPaged:
        """One new token per row, which attends to `lengths` tokens including itself; nothing leaves the device."""
        row = torch.arange(len(slots), dtype=torch.int32, device=slots.device)
        zero = torch.zeros_like(row)
        segments = torch.stack([row, zero + 1, lengths.to(torch.int32) - 1, zero], dim=1)
        tiles = torch.stack([row, zero], dim=1)
        return InvariantPaged(slots, Spans(tables, segments, tiles, block_size, packed=False))

    @staticmethod
    def prefill(cache: KVCache, segments: Sequence[Segment], group: int) -> InvariantPaged:
        """Prompts or parts of them, packed; `group` query heads share a key/value head."""
        device, block_size = cache.keys[0].device, cache.block_size
        width = max(blocks_for(s.start + s.length, block_size) for s in segments)
        tables = np.zeros((len(segments), width), dtype=np.int32)
        rows, tiles, first = [], [], 0
        for number, segment in enumerate(segments):
            num_blocks = blocks_for(segment.start + segment.length, block_size)
            tables[number, :num_blocks] = segment.blocks[:num_blocks]
            rows.append((first, segment.length, segment.start, 0))
            tiles += [(number, offset) for offset in range(0, segment.length, tokens_per_tile(group))]
            first += segment.length
        slots = torch.cat([segment.slots(block_size) for segment in segments]).to(device)
        arrays = (tables, np.array(rows, dtype=np.int32), np.array(tiles, dtype=np.int32))
        moved = (torch.from_numpy(array).to(device) for array in arrays)
        return InvariantPaged(slots, Spans(*moved, block=block_size, packed=False))

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        write_kv(keys, values, key, value, self.slots)
        return kernels.attend(query, keys, values, self.spans, shape)[0]


class InvariantUncached:
    """Whole sequences that leave nothing in the cache, for scoring."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = Segments([segment.length for segment in segments])

    def attend(
        self,
        keys: Tensor | None,
        values: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        shape: AttentionShape,
    ) -> Tensor:
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        return packed_attention(query, key, value, self.segments, shape)
