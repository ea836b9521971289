"""The paged KV cache: one pool of blocks per layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.sizing import CACHE_BLOCK as BLOCK_SIZE

ALIGNMENT = 64  # bytes, as torch aligns its own tensors

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]  # zeros of this size


@dataclass(frozen=True)
class CacheShape:
    """Layers, key/value heads, head size and format of a cache, and the tokens of a block."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int = BLOCK_SIZE

    @property
    def block_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.block_size * self.dtype.itemsize


class KVCache:
    """keys[layer], values[layer]: [num_blocks, kv_heads, block_size, head_dim].

    Attention over it (models/paged.py) reads the block size from this shape.
    """

    def __init__(
        self, shape: CacheShape, num_blocks: int, device: torch.device, allocate: Allocate | None = None
    ) -> None:
        size = (num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
        allocate = partial(_zeros, device=device) if allocate is None else allocate
        self.keys = [allocate(size, shape.dtype) for _ in range(shape.layers)]
        self.values = [allocate(size, shape.dtype) for _ in range(shape.layers)]
        self.experts: Tensor | None = None  # [num_blocks, block_size, mixtures, k]: those of each token, if recorded

    @property
    def num_blocks(self) -> int:
        return self.keys[0].shape[0]

    @property
    def block_size(self) -> int:
        return self.keys[0].shape[2]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in every layer; no target is a source."""
        device = self.keys[0].device
        source, target = torch.tensor(list(sources), device=device), torch.tensor(list(targets), device=device)
        experts = [] if self.experts is None else [self.experts]
        for pool in (*self.keys, *self.values, *experts):
            pool[target] = pool[source]


class Segment(NamedTuple):
    """Tokens start..start + length of a prompt in a prefill pass; those before `start` are in the cache already."""

    length: int
    start: int = 0
    blocks: Sequence[int] = ()  # of the whole prompt; padding has none
    # (first token, end) in the prompt of images whose tokens attend to each other in both directions
    wholes: Sequence[tuple[int, int]] = ()

    def slots(self, block_size: int) -> Tensor:
        """Places of its tokens in the cache, block * block_size + offset."""
        position = torch.arange(self.start, self.start + self.length)
        blocks = torch.tensor(self.blocks[: blocks_for(self.start + self.length, block_size)], dtype=torch.int64)
        return blocks[position // block_size] * block_size + position % block_size


def blocks_for(num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    return -(-num_tokens // block_size)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not uninitialized memory: masked entries are multiplied by zero, and zero times a stray NaN is NaN."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # numpy gets zeroed pages from the system, backed on first write; torch.zeros would write them all now.
    num_bytes = math.prod(size) * dtype.itemsize
    buffer = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return torch.from_numpy(buffer[start : start + num_bytes]).view(dtype).view(size)
