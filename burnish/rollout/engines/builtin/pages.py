"""What the runner of a device passes through the model: whose the tokens of a forward are, as tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.models.kernels.paged import QUERIES
from burnish.models.paged import Segments, write_and_decode, write_and_prefill
from burnish.models.varlen import AttentionShape
from burnish.rollout.engines.builtin.blocks import blocks_for
from burnish.rollout.engines.builtin.cache import PrefillContext, Segment


@dataclass(frozen=True)
class DecodePages:
    """One new token per row."""

    slots: Tensor  # [rows]: where its keys and values go, block * block size + place
    tables: Tensor  # [rows, blocks] int32
    lengths: Tensor  # [rows]: tokens it sees, itself included
    triton: bool

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        where = (self.slots, self.tables, self.lengths)
        return write_and_decode(keys, values, query, key, value, *where, shape, self.triton)


class PrefillPages:
    """Prompts or parts of them, packed; each token sees its own prompt up to itself."""

    def __init__(self, segments: Sequence[Segment], block: int, device: torch.device, triton: bool) -> None:
        self.triton = triton
        width = max(blocks_for(s.start + s.length, block) for s in segments)
        tables = np.zeros((len(segments), width), dtype=np.int32)
        slots, spans, tiles, first = [], [], [], 0
        for number, segment in enumerate(segments):
            own = np.asarray(segment.blocks[: blocks_for(segment.start + segment.length, block)], dtype=np.int64)
            tables[number, : len(own)] = own
            place = np.arange(segment.start, segment.start + segment.length)
            slots.append(own[place // block] * block + place % block)
            spans.append((first, segment.length, segment.start))
            tiles += [(number, offset) for offset in range(0, segment.length, QUERIES)]
            first += segment.length
        self.slots = torch.from_numpy(np.concatenate(slots)).to(device)
        whole = (tables, np.array(spans, dtype=np.int32), np.array(tiles, dtype=np.int32))
        self.segments = Segments(*(torch.from_numpy(part).to(device) for part in whole))

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        return write_and_prefill(keys, values, query, key, value, self.slots, self.segments, shape, self.triton)


class NoPages:
    """Whole texts that leave nothing in the cache, for scoring."""

    def __init__(self, segments: list[Segment]) -> None:
        self.context = PrefillContext(None, segments, by_block=False)

    def attend(
        self, keys: None, values: None, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        return self.context.attend(0, query, key, value, shape)
