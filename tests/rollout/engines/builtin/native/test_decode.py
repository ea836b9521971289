"""The C decode kernel equals torch, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import AttentionShape, eager_attention
from burnish.rollout.engines.builtin.kv_cache import CacheShape, KVCache
from burnish.rollout.engines.builtin.native.decode import CpuDecode, decode_function

KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE = 2, 3, 24, 16
LENGTHS = [0, 1, 15, 16, 17, 40]  # tokens before the new one
SHAPES = {
    "plain": AttentionShape(0.2),
    "window": AttentionShape(0.2, window=18),
    "softcap": AttentionShape(0.2, softcap=1.5),
}


def filled(generator):
    """A cache, the rows' tables in shuffled blocks, and a row's keys and values in order."""
    cache = KVCache(CacheShape(1, KV_HEADS, HEAD_DIM, torch.float32, BLOCK_SIZE), 32, torch.device("cpu"))
    for pool in (*cache.keys, *cache.values):
        pool.normal_(generator=generator)
    free = torch.randperm(32, generator=generator).tolist()
    tables = [[free.pop() for _ in range(length // BLOCK_SIZE + 1)] for length in LENGTHS]
    return cache, tables


def attend(cache, tables, lengths, new, shape, pad=0):
    context = CpuDecode(cache, decode_function(GROUP, HEAD_DIM), tables, lengths, pad)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, pad)) for part in new]
    return context.attend(cache.keys[0], cache.values[0], *padded, shape)


def in_order(pool, table, length):
    """[1, kv_heads, length, d]"""
    return pool[torch.tensor(table)].transpose(0, 1).flatten(1, 2)[None, :, :length]


@pytest.mark.parametrize("name", SHAPES)
def test_equals_torch(name):
    generator = torch.Generator().manual_seed(0)
    cache, tables = filled(generator)
    heads = (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)
    new = [torch.randn(count, len(LENGTHS), HEAD_DIM, generator=generator) for count in heads]
    found = attend(cache, tables, LENGTHS, new, SHAPES[name], pad=2)
    assert found.shape == (len(LENGTHS) + 2, KV_HEADS * GROUP, HEAD_DIM) and not found[-2:].any()
    for row, (table, length) in enumerate(zip(tables, LENGTHS, strict=True)):
        keys, values = (in_order(pool[0], table, length + 1) for pool in (cache.keys, cache.values))
        assert torch.equal(keys[0, :, -1], new[1][:, row]) and torch.equal(values[0, :, -1], new[2][:, row])
        expected = eager_attention(new[0][None, :, row, None], keys, values, SHAPES[name])[0, :, 0]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)


def test_a_sequence_does_not_depend_on_the_batch():
    generator = torch.Generator().manual_seed(1)
    cache, tables = filled(generator)
    new = [torch.randn(n, len(LENGTHS), HEAD_DIM, generator=generator) for n in (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)]
    together = attend(cache, tables, LENGTHS, new, SHAPES["plain"])
    for row, length in enumerate(LENGTHS):
        alone = attend(cache, [tables[row]], [length], [part[:, row : row + 1] for part in new], SHAPES["plain"])
        assert torch.equal(together[row], alone[0])
