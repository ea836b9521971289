"""PrefixClusters: which running sequences read the KV of their common prefix together.

Sequences share a prefix by having the same blocks at the start of their tables: samples of a prompt, conversations
with a common history, prompts with a cached prefix. Decoding reads the prefix of a cluster once for all of its
sequences, and then each one's other blocks (models/kernels/shared_prefix.py).

A cluster's prefix is the longest that all of its sequences have. Where prefixes are nested, a sequence joins those with
which it shares the most, so that a shorter prefix that several clusters have in common is read once for each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from burnish.models.paged import SharedPrefixes
from burnish.rollout.engines.builtin.device_batch import DeviceBatch, Mirror

MIN_TOKENS = 64  # shorter prefixes are read by each sequence (not measured)
COLUMNS = 16  # blocks that are compared first; more if prefixes are longer
ROUNDS = 3  # sequences left over by one round are grouped by shorter prefixes in the next


class Clusters(NamedTuple):
    """On the host; the largest saving first."""

    rows: np.ndarray  # of all clusters, one cluster after the other
    sizes: np.ndarray  # [clusters] rows of each
    prefix: np.ndarray  # [clusters] tokens

    @property
    def starts(self) -> np.ndarray:
        """[clusters] where each begins in `rows`."""
        return np.cumsum(self.sizes) - self.sizes

    def tokens_saved(self, num_tokens: np.ndarray) -> int:
        """KV tokens that were not read again while slot i generated num_tokens[i] tokens, all from the same step on.

        A prefix is read in every step in which a member is active.
        """
        if len(self.rows) == 0:
            return 0
        members = num_tokens[self.rows]
        saved = np.add.reduceat(members, self.starts) - np.maximum.reduceat(members, self.starts)
        return int((saved * self.prefix).sum())


NONE = Clusters(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


def find_clusters(
    tables: np.ndarray,  # [rows, blocks]
    num_blocks: np.ndarray,  # [rows] of each table
    block_size: int,
    members: int,
    capacity: int,
) -> Clusters:
    """Disjoint clusters of 2 to `members` rows, at most `capacity`."""
    ids = _leading_blocks(tables, num_blocks)
    left = np.arange(len(ids))
    rounds: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(ROUNDS):
        rows, sizes = _same_deepest_block(ids[left], members)
        rounds.append((left[rows], sizes))
        left = np.delete(left, rows)
        if len(rows) == 0 or len(left) < 2:
            break
    rows, sizes = (np.concatenate(part) for part in zip(*rounds, strict=True))
    if len(rows) == 0:
        return NONE
    prefix = _common_run(ids, rows, sizes) * block_size
    best = np.argsort(-prefix * (sizes - 1), kind="stable")
    best = best[prefix[best] >= MIN_TOKENS][:capacity]
    each = np.split(rows, np.cumsum(sizes)[:-1])
    return Clusters(np.concatenate([rows[:0], *(each[number] for number in best.tolist())]), sizes[best], prefix[best])


def _leading_blocks(tables: np.ndarray, num_blocks: np.ndarray) -> np.ndarray:
    """[rows, columns] block + 1, in as many columns as the longest prefix that two rows share; 0: no block."""
    columns = COLUMNS
    while True:
        width = min(columns, tables.shape[1])
        ids = np.where(np.arange(width) < num_blocks[:, None], tables[:, :width].astype(np.int64) + 1, 0)
        depth = _shared_depth(ids)
        if width == tables.shape[1] or depth.max(initial=0) < width:
            return ids[:, : max(1, int(depth.max(initial=0)))]
        columns *= 2


def _shared_depth(ids: np.ndarray) -> np.ndarray:
    """[rows] leading blocks that another row has too."""
    is_shared = np.bincount(ids.ravel(), minlength=1)[ids] > 1
    return _leading(is_shared & (ids > 0))


def _leading(flags: np.ndarray) -> np.ndarray:
    """[rows] how many flags hold before the first that does not."""
    return np.where(flags.all(1), flags.shape[1], flags.argmin(1))


def _same_deepest_block(ids: np.ndarray, members: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups of rows whose last shared block is the same: a block is in one place of one history, so what is before it
    is the same too. Large groups are split into equal parts. Returns the rows group by group, and the groups' sizes."""
    depth = _shared_depth(ids)
    shares = np.flatnonzero(depth > 0)
    deepest = ids[shares, depth[shares] - 1]
    order = np.argsort(deepest, kind="stable")
    _, group, size = np.unique(deepest[order], return_inverse=True, return_counts=True)
    parts = -(-size // members)
    place = np.arange(len(order)) - (np.cumsum(size) - size)[group]
    part = (np.cumsum(parts) - parts)[group] + place * parts[group] // size[group]
    sizes = np.bincount(part)
    return shares[order][sizes[part] > 1], sizes[sizes > 1]


def _common_run(ids: np.ndarray, rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[clusters] leading blocks that all rows of a cluster have, compared one by one."""
    starts = np.cumsum(sizes) - sizes
    first = np.repeat(rows[starts], sizes)
    run = _leading((ids[rows] == ids[first]) & (ids[rows] > 0))
    return np.minimum.reduceat(run, starts)


class PrefixClusters:
    """The clusters of the device's batch, as tensors of fixed addresses.

    They are written when sequences join or leave the batch. Tables grow by blocks of one sequence only, and a sequence
    that ends between two host syncs stays in its cluster until the next.
    """

    def __init__(self, num_slots: int, members: int, block_size: int, device: torch.device) -> None:
        self.block_size, self.members = block_size, members
        capacity = max_clusters(num_slots)
        self._clusters = Mirror((capacity, members), torch.int32, device, -1)
        self._prefix = Mirror((capacity,), torch.int32, device)
        self._shared = Mirror((num_slots,), torch.int32, device)
        self.found = NONE

    def arrange(self, batch: DeviceBatch) -> None:
        """Find and send the clusters of the batch's sequences."""
        rows = len(batch.sequences)
        tables, num_blocks = batch.tables.host[:rows], batch.num_blocks[:rows]
        self.found = found = find_clusters(tables, num_blocks, self.block_size, self.members, max_clusters(rows))
        for mirror in (self._clusters, self._prefix, self._shared):
            mirror.host.fill(mirror.fill)
        self._prefix.host[: len(found.prefix)] = found.prefix
        cluster = np.repeat(np.arange(len(found.sizes)), found.sizes)
        self._clusters.host[cluster, np.arange(len(found.rows)) - found.starts[cluster]] = found.rows
        self._shared.host[found.rows] = found.prefix[cluster]
        for mirror in (self._clusters, self._prefix, self._shared):
            mirror.push()

    def of_slots(self, size: int) -> SharedPrefixes:
        """For a step over the first `size` slots."""
        capacity = max_clusters(size)
        return SharedPrefixes(
            self._clusters.device[:capacity], self._prefix.device[:capacity], self._shared.device[:size]
        )


def max_clusters(num_rows: int) -> int:
    """Room for clusters of four rows, and more in small batches. Each place costs programs in every decode step, so
    where more prefixes are shared, those that save least are read by each row.

    Two or more, and others for every size of a batch that has a graph: torch.compile makes a program of its own for a
    dimension of one, and for one that stays where another has changed.
    """
    return num_rows + 1 if num_rows < 16 else 13 + num_rows // 4
