"""Tile sizes, splits and warps of the paged attention kernels, by device and by size of the heads."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

DOT = 16  # minimum rows and columns of tl.dot
TILE_BYTES = 1 << 15  # of one tile of keys: several must fit into shared memory
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
    overlap: bool = False  # launch before the kernel before has ended, and let the next do so. Hopper and later


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
    return 4 if queries * next_power(dim) < 64 * 128 else 8


def num_members(group: int) -> int:
    """Rows of a cluster, where `group` query heads share a key/value head."""
    return max(2, min(MAX_MEMBERS, CLUSTER_QUERIES // group))


def tile_size(block: int, dim: int, dtype: torch.dtype, choice: Tuning = DEFAULT) -> int:
    """Keys per tile: divides a block and stays within TILE_BYTES."""
    return min(choice.tile, block, max(DOT, TILE_BYTES // (next_power(dim) * dtype.itemsize)))


def next_power(number: int) -> int:
    """The next power of two, as tl.arange needs it."""
    return 1 << (number - 1).bit_length()
