"""Attention in two phases, a common prefix for all of its rows and then each row's rest, against whole rows."""

from __future__ import annotations

import itertools

import pytest
import torch

from burnish.models.kernels import decode, shared_prefix
from burnish.models.kernels import tuning as kernels
from burnish.models.paged import SharedPrefixes, attend_tables, write_and_decode
from burnish.models.varlen import AttentionShape


class Rows:
    """Rows whose tables begin with common blocks: `prefixes[i]` of them in the rows `clusters[i]`."""

    def __init__(self, lengths, clusters, prefixes, heads, kv_heads, dim, block, dtype=torch.float32, seed=0):
        g = torch.Generator().manual_seed(seed)
        count, width = len(lengths), max(-(-length // block) for length in lengths) + 1
        num_blocks = 1 + width * count
        self.block = block
        self.keys, self.values = (
            torch.randn(num_blocks, kv_heads, block, dim, generator=g).to(dtype) for _ in range(2)
        )
        order = 1 + torch.randperm(num_blocks - 1, generator=g)
        self.tables = order.view(count, width).to(torch.int32)
        rows, tokens = torch.full((count // 2 + 1, 4), -1, dtype=torch.int32), torch.zeros(count // 2 + 1)
        shared = torch.zeros(count, dtype=torch.int32)
        for number, (cluster, blocks) in enumerate(zip(clusters, prefixes, strict=True)):
            cluster = list(cluster)
            rows[number, : len(cluster)], tokens[number] = torch.tensor(cluster), blocks * block
            self.tables[cluster, :blocks] = self.tables[cluster[0], :blocks]
            shared[cluster] = blocks * block
        self.prefixes = SharedPrefixes(rows, tokens.to(torch.int32), shared)
        self.lengths = torch.tensor(lengths)
        self.query = torch.randn(count, heads, dim, generator=g).to(dtype).transpose(0, 1)
        self.new = [torch.randn(count, kv_heads, dim, generator=g).to(dtype).transpose(0, 1) for _ in range(2)]
        last = self.lengths - 1
        self.slots = self.tables.long()[torch.arange(count), last // block] * block + last % block

    def retire(self, *rows):
        """They have ended: length 1, and a place of their own to write to."""
        self.lengths[list(rows)], self.slots[list(rows)] = 1, torch.arange(len(rows))

    def decoded(self, shape, triton, prefixes=None):
        keys, values = self.keys.clone(), self.values.clone()
        where = (self.slots, self.tables, self.lengths)
        return write_and_decode(keys, values, self.query, *self.new, *where, shape, triton, prefixes), keys, values


# lengths, clusters, blocks of their prefixes, heads, kv_heads, dim, block, shape
PLAIN = AttentionShape(0.25)
CASES = {
    "one cluster": ((40, 33, 60), ((0, 1, 2),), (2,), 8, 2, 16, 16, PLAIN),
    "two clusters and a row alone": ((50, 70, 40, 90, 35), ((4, 0), (1, 3)), (2, 4), 4, 2, 16, 16, PLAIN),
    "nothing shared": ((20, 50), (), (), 4, 2, 16, 16, PLAIN),
    "the newest token is the first of its own": ((33, 34, 33), ((0, 1, 2),), (2,), 4, 2, 16, 16, PLAIN),
    "one head each": ((40, 40), ((0, 1),), (1,), 3, 3, 64, 32, PLAIN),
    "seven heads": ((70, 90, 66), ((0, 2, 1),), (1,), 14, 2, 64, 64, AttentionShape(0.125)),
    "sixteen heads": ((40, 35), ((0, 1),), (2,), 16, 1, 96, 16, PLAIN),
    "eighteen heads": ((40, 35), ((0, 1),), (2,), 18, 1, 128, 16, PLAIN),
    "large heads": ((70, 80, 65), ((0, 1, 2),), (1,), 4, 1, 256, 64, AttentionShape(0.0625, window=40)),
    "window within the prefix": ((50, 64, 90), ((0, 1, 2),), (2,), 4, 4, 16, 16, AttentionShape(0.25, window=40)),
    "window beyond the prefix": ((90, 64, 38), ((0, 1, 2),), (2,), 4, 4, 16, 16, AttentionShape(0.25, window=20)),
    "soft cap": ((30, 70, 45), ((0, 1, 2),), (1,), 4, 2, 16, 16, AttentionShape(1.0, softcap=2.0)),
    "all": ((200, 140, 129), ((0, 2),), (1,), 6, 2, 40, 128, AttentionShape(0.3, window=100, softcap=3.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reference_equals_whole_rows(case):
    *scene, shape = CASES[case]
    rows = Rows(*scene)
    expected, keys, values = rows.decoded(shape, triton=False)
    found, *pools = rows.decoded(shape, triton=False, prefixes=rows.prefixes)
    assert torch.allclose(found, expected, atol=2e-6)
    assert torch.equal(pools[0], keys) and torch.equal(pools[1], values)


@pytest.mark.parametrize(
    ("case", "splits", "prefix_splits"),
    [*((case, 1, 1) for case in CASES), ("one cluster", 2, 4), ("window within the prefix", 1, 4), ("all", 4, 2)],
)
def test_the_kernels_equal_the_reference(case, splits, prefix_splits, monkeypatch):
    *scene, shape = CASES[case]
    rows = Rows(*scene)
    monkeypatch.setattr(decode, "num_splits", lambda *_: splits)
    monkeypatch.setattr(shared_prefix, "num_prefix_splits", lambda *_: prefix_splits)
    expected, keys, values = rows.decoded(shape, triton=False, prefixes=rows.prefixes)
    found, *pools = rows.decoded(shape, triton=True, prefixes=rows.prefixes)
    assert torch.allclose(found, expected, atol=3e-6)
    assert torch.equal(pools[0], keys) and torch.equal(pools[1], values)


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("retired", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_members_that_have_ended_are_harmless(retired, triton):
    """Also the first, whose table names the blocks."""
    rows = Rows((50, 40, 60, 45), ((0, 1, 2),), (2,), 4, 2, 16, 16)
    rows.retire(*retired)
    expected, _, _ = rows.decoded(PLAIN, triton=False)
    found, _, _ = rows.decoded(PLAIN, triton, rows.prefixes)
    live = rows.lengths > 1
    assert torch.allclose(found[live], expected[live], atol=3e-6) and found.isfinite().all()


def test_the_prefix_is_read_from_the_first_table_alone(monkeypatch):
    """With garbage in the other tables nothing changes: they are read behind the prefix only."""
    rows = Rows((50, 40, 60), ((0, 1, 2),), (2,), 4, 2, 16, 16)
    expected, _, _ = rows.decoded(PLAIN, triton=True, prefixes=rows.prefixes)
    own = rows.tables.unique().tolist()
    unused = next(block for block in range(len(rows.keys)) if block not in own)
    rows.keys[unused] = float("nan")
    rows.tables[1:, :2] = unused
    found, _, _ = rows.decoded(PLAIN, triton=True, prefixes=rows.prefixes)
    assert torch.equal(found, expected)


def test_half_precision():
    """The interpreter has no product of bfloat16."""
    rows = Rows((90, 80, 75), ((0, 1, 2),), (4,), 8, 2, 32, 16, dtype=torch.float16)
    exact = attend_tables(
        rows.query.transpose(0, 1).double(),
        *(x.double() for x in rows.decoded(PLAIN, triton=False)[1:]),
        *(rows.tables, rows.lengths, PLAIN),
    )
    for found in (rows.decoded(PLAIN, triton, rows.prefixes)[0] for triton in (True, False)):
        assert found.dtype is torch.float16
        assert (found.double() - exact).norm() / exact.norm() < 2e-3


def test_any_partition_gives_the_same(monkeypatch):
    """Clusters of any rows, lengths and prefixes, in any number of places."""
    g = torch.Generator().manual_seed(7)

    def pick(low, high):
        return int(torch.randint(low, high, (), generator=g))

    for seed in range(8):
        count, block = pick(2, 9), 16
        order, clusters, prefixes = torch.randperm(count, generator=g).tolist(), [], []
        while len(order) > 1:
            size = min(len(order), pick(1, 5))
            taken, order = order[:size], order[size:]
            if size > 1:
                clusters.append(taken)
                prefixes.append(pick(1, 5))
        lengths = [pick(1, 40) for _ in range(count)]
        for cluster, blocks in zip(clusters, prefixes, strict=True):
            for row in cluster:
                lengths[row] += blocks * block
        group = pick(1, 5)
        shape = AttentionShape(0.3, window=pick(5, 90) if pick(0, 2) else None, softcap=3.0 if pick(0, 2) else None)
        rows = Rows(lengths, clusters, prefixes, 2 * group, 2, 24, block, seed=seed)
        rows.retire(*[row for row in range(count) if pick(0, 4) == 0])
        expected, _, _ = rows.decoded(shape, triton=False)
        for triton in (True, False):
            found, _, _ = rows.decoded(shape, triton, rows.prefixes)
            live = rows.lengths > 1
            assert found.isfinite().all()
            assert torch.allclose(found[live], expected[live], atol=4e-6), (seed, triton, clusters, prefixes, shape)


def test_a_cluster_holds_the_usual_group_of_samples():
    assert [kernels.num_members(group) for group in (1, 2, 4, 7, 8)] == [16] * 5
    assert [kernels.num_members(group) for group in (12, 16, 64, 71)] == [10, 8, 2, 2]


def test_prefixes_are_split_until_the_gpu_is_busy():
    assert kernels.num_prefix_splits(64 * 8, 4096) == 1  # 1,024 rows in groups of 16, 8 key/value heads
    assert kernels.num_prefix_splits(64 * 2, 4096) == 2
    assert kernels.num_prefix_splits(4 * 2, 4096) == kernels.MAX_PREFIX_SPLITS
    assert kernels.num_prefix_splits(1, 256) == 2 and kernels.num_prefix_splits(1, 16) == 1
    everything = itertools.product((1, 3, 8, 100, 5000), (16, 100, 300, 5000))
    assert all(kernels.num_prefix_splits(*both).bit_count() == 1 for both in everything)


def test_tuning_is_the_default_where_nothing_was_measured(monkeypatch):
    gpu = torch.device("cuda:7")
    kernels.capability.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert kernels.tuning(gpu, 128, 8) == kernels.DEFAULT
    measured = kernels.Tuning(tile=32)
    monkeypatch.setitem(kernels.TUNED, ((9, 0), 128, 8), measured)
    assert kernels.tuning(gpu, 128, 8) == measured
    assert kernels.tuning(gpu, 128, 4) == kernels.tuning(torch.device("cpu"), 128, 8) == kernels.DEFAULT
    kernels.capability.cache_clear()
