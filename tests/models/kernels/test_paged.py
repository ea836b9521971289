"""The paged products in Triton's interpreter, against attention written out token by token."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from burnish.models.kernels import decode, tuning
from burnish.models.kernels import paged as kernels
from burnish.models.paged import PagedSegments, attend_tables, write_and_decode, write_and_prefill
from burnish.models.varlen import AttentionShape


def by_hand(query, keys, values, shape):
    """One query [heads, d] against [kv_heads, T, d], in float64; it is the newest of T tokens."""
    heads, kv_heads, length = query.shape[0], keys.shape[0], keys.shape[1]
    start = 0 if shape.window is None else max(0, length - shape.window)
    outputs = []
    for head in range(heads):
        k, v = (x[head // (heads // kv_heads), start:].double() for x in (keys, values))
        scores = k @ query[head].double() * shape.scaling
        if shape.softcap is not None:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        outputs.append(scores.softmax(0) @ v)
    return torch.stack(outputs)


class Scene:
    """A cache filled with noise, and rows whose blocks are scattered over it."""

    def __init__(self, lengths, heads, kv_heads, dim, block, dtype, seed=0):
        g = torch.Generator().manual_seed(seed)
        width = max(-(-length // block) for length in lengths) + 1
        num_blocks = 1 + width * len(lengths)
        size = (num_blocks, kv_heads, block, dim)
        self.keys, self.values = (torch.randn(size, generator=g).to(dtype) for _ in range(2))
        order = 1 + torch.randperm(num_blocks - 1, generator=g)
        self.tables = order[: len(lengths) * width].view(len(lengths), width).to(torch.int32)
        self.lengths = torch.tensor(lengths)
        self.block = block
        self.query = torch.randn(len(lengths), heads, dim, generator=g).to(dtype).transpose(0, 1)
        self.new = [torch.randn(len(lengths), kv_heads, dim, generator=g).to(dtype).transpose(0, 1) for _ in range(2)]

    def decoded(self, shape):
        """By the kernel, which is given the newest tokens and finds nothing where they go."""
        slots = torch.tensor([self.slots(row, length - 1) for row, length in enumerate(self.lengths.tolist())])
        block, place = slots // self.block, slots % self.block
        new = [pool[block, :, place].clone().transpose(0, 1) for pool in (self.keys, self.values)]
        for pool in (self.keys, self.values):
            pool[block, :, place] = float("nan")
        return decode.write_and_attend(
            self.keys, self.values, self.query, *new, slots, self.tables, self.lengths, shape
        )

    def slots(self, row, place):
        return int(self.tables[row, place // self.block]) * self.block + place % self.block

    def of_row(self, pool, row, length):
        """[kv_heads, length, d] of one row."""
        places = [divmod(self.slots(row, place), self.block) for place in range(length)]
        return torch.stack([pool[block, :, offset] for block, offset in places], dim=1)


FP8 = torch.float8_e4m3fn
SHAPES = {
    "plain": ((7, 1), 8, 2, 16, 16, AttentionShape(0.25)),
    "many lengths": ((1, 16, 17, 100, 33), 4, 2, 16, 16, AttentionShape(0.25)),
    "seven heads share": ((40, 3), 14, 2, 64, 64, AttentionShape(0.125)),
    "odd head size": ((20, 50), 3, 1, 24, 16, AttentionShape(0.2)),
    "window": ((5, 64, 90), 4, 4, 16, 32, AttentionShape(0.25, window=20)),
    "soft cap": ((30, 70), 4, 2, 16, 16, AttentionShape(1.0, softcap=2.0)),
    "all": ((200, 12), 6, 2, 40, 128, AttentionShape(0.3, window=100, softcap=3.0)),
}


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("case", SHAPES)
def test_decode(case, splits, monkeypatch):
    lengths, heads, kv_heads, dim, block, shape = SHAPES[case]
    scene = Scene(lengths, heads, kv_heads, dim, block, torch.float32)
    monkeypatch.setattr(decode, "num_splits", lambda *_: splits)
    found = scene.decoded(shape)
    plain = attend_tables(scene.query.transpose(0, 1), scene.keys, scene.values, scene.tables, scene.lengths, shape)
    for row, length in enumerate(lengths):
        keys, values = (scene.of_row(pool, row, length) for pool in (scene.keys, scene.values))
        expected = by_hand(scene.query[:, row], keys, values, shape)
        assert torch.allclose(found[row].double(), expected, atol=2e-6)
        assert torch.allclose(plain[row].double(), expected, atol=2e-6)


def test_decode_in_half_precision():
    """The interpreter has no product of bfloat16."""
    scene = Scene((40, 9), 8, 2, 32, 16, torch.float16)
    shape = AttentionShape(0.18)
    found = scene.decoded(shape)
    assert found.dtype is torch.float16
    for row, length in enumerate((40, 9)):
        expected = by_hand(
            scene.query[:, row], *(scene.of_row(p, row, length) for p in (scene.keys, scene.values)), shape
        )
        error = (found[row].double() - expected).norm() / expected.norm()
        assert error < 2e-3


@pytest.mark.parametrize("splits", [1, 4])
def test_decode_with_a_cache_of_8_bits(splits, monkeypatch):
    """Keys and values are written in 8 bits, and the newest token sees what is written.

    The new ones have 8 bits already: the interpreter loses the carry of a rounding.
    """
    lengths, shape = (40, 9, 17), AttentionShape(0.25)
    scene = Scene(lengths, 8, 2, 32, 16, torch.float32)
    scene.keys, scene.values = scene.keys.to(FP8), scene.values.to(FP8)
    scene.new = [part.to(FP8).float() for part in scene.new]
    monkeypatch.setattr(decode, "num_splits", lambda *_: splits)
    slots = torch.tensor([scene.slots(row, length - 1) for row, length in enumerate(lengths)])
    arguments = (scene.query, *scene.new, slots, scene.tables, scene.lengths, shape)
    found = write_and_decode(scene.keys, scene.values, *arguments, triton=True)
    plain = attend_tables(scene.query.transpose(0, 1), scene.keys, scene.values, *arguments[4:])
    for row, (length, slot) in enumerate(zip(lengths, slots.tolist(), strict=True)):
        written = scene.keys[slot // 16, :, slot % 16].float()
        assert torch.equal(written, scene.new[0][:, row])
        rounded = [scene.of_row(pool.float(), row, length) for pool in (scene.keys, scene.values)]
        expected = by_hand(scene.query[:, row], *rounded, shape)
        for output in (found, plain):
            assert torch.allclose(output[row].double(), expected, atol=2e-6)


@pytest.mark.parametrize("triton", [True, False])
def test_a_new_token_is_written_and_sees_itself(triton):
    lengths = (17, 5, 32)
    scene = Scene(lengths, 4, 2, 16, 16, torch.float32)
    before = scene.keys.clone(), scene.values.clone()
    slots = torch.tensor([scene.slots(row, length - 1) for row, length in enumerate(lengths)])
    shape = AttentionShape(0.25)
    arguments = (scene.keys, scene.values, scene.query, *scene.new, slots, scene.tables, scene.lengths, shape)
    found = write_and_decode(*arguments, triton=triton)
    for pool, old, new in zip((scene.keys, scene.values), before, scene.new, strict=True):
        expected = old.clone()
        for row, slot in enumerate(slots.tolist()):
            expected[slot // 16, :, slot % 16] = new[:, row]
        assert torch.equal(pool, expected)
    for row, length in enumerate(lengths):
        keys, values = (scene.of_row(pool, row, length) for pool in (scene.keys, scene.values))
        assert torch.allclose(found[row].double(), by_hand(scene.query[:, row], keys, values, shape), atol=2e-6)


def prefill_scene(parts, heads, kv_heads, dim, block, shape, triton, seed=3):
    """parts: (tokens in the cache before, new tokens) of each prompt."""
    scene = Scene([before + new for before, new in parts], heads, kv_heads, dim, block, torch.float32, seed)
    total = sum(new for _, new in parts)
    g = torch.Generator().manual_seed(seed + 1)
    query, key, value = (torch.randn(total, n, dim, generator=g).transpose(0, 1) for n in (heads, kv_heads, kv_heads))
    slots, spans, tiles, first = [], [], [], 0
    for number, (before, new) in enumerate(parts):
        slots += [scene.slots(number, place) for place in range(before, before + new)]
        spans.append((first, new, before))
        tiles += [(number, offset) for offset in range(0, new, kernels.QUERIES)]
        first += new
    segments = PagedSegments(
        scene.tables, torch.tensor(spans, dtype=torch.int32), torch.tensor(tiles, dtype=torch.int32)
    )
    found = write_and_prefill(scene.keys, scene.values, query, key, value, torch.tensor(slots), segments, shape, triton)
    return scene, query, found


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize(
    "shape", [AttentionShape(0.25), AttentionShape(0.25, window=9), AttentionShape(1.0, window=70, softcap=2.0)]
)
def test_prefill_sees_what_came_before(shape, triton):
    parts = [(0, 5), (32, 70), (16, 1)]
    scene, query, found = prefill_scene(parts, 4, 2, 24, 16, shape, triton)
    token = 0
    for number, (before, new) in enumerate(parts):
        for place in range(before, before + new):
            keys, values = (scene.of_row(pool, number, place + 1) for pool in (scene.keys, scene.values))
            expected = by_hand(query[:, token], keys, values, shape)
            assert torch.allclose(found[token].double(), expected, atol=3e-6), (number, place)
            token += 1
    assert token == len(found)


def test_few_rows_are_split_and_many_are_not():
    assert tuning.num_splits(2 * 1024, 2048) == 1
    assert tuning.num_splits(2, 32768) == tuning.MAX_SPLITS
    assert tuning.num_splits(64, 32768) == 16
    assert tuning.num_splits(1, 128) == 2
    assert tuning.num_splits(512, 448) == 1 and tuning.num_splits(512, 512) == tuning.num_splits(256, 448) // 2 == 2
    assert all(math.log2(tuning.num_splits(n, 4096)).is_integer() for n in range(1, 2000, 37))


def test_tiles_divide_blocks_and_stay_small():
    assert tuning.tile_size(64, 64, torch.bfloat16) == tuning.tile_size(256, 128, torch.float32) == 64
    assert tuning.tile_size(16, 64, torch.bfloat16) == 16 and tuning.tile_size(64, 256, torch.float32) == 32


@pytest.mark.long
def test_every_kernel_of_decoding_compiles_for_hopper(tmp_path):
    """No GPU is needed for that."""
    script = Path(__file__).parent / "hopper.py"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env)
    assert done.stdout.split()[-1:] == ["compiled"], done.stderr[-2000:]
