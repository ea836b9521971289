"""The kernel in C attends as torch does, row by row, and the engine says so where it cannot have it."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import AttentionShape, eager_attention
from burnish.rollout.builtin import native
from burnish.rollout.builtin.cache import CacheShape, KVCache
from burnish.rollout.engine import Sampling

KV_HEADS, GROUP, HEAD_DIM, BLOCK = 2, 3, 24, 16
LENGTHS = [0, 1, 15, 16, 17, 40]  # tokens before the new one
SHAPES = {
    "plain": AttentionShape(0.2),
    "window": AttentionShape(0.2, window=18),
    "softcap": AttentionShape(0.2, softcap=1.5),
}


@pytest.fixture(autouse=True)
def compiled_here(tmp_path_factory, monkeypatch):
    """In a folder of the tests' own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    native.decode_function.cache_clear()
    yield
    native.decode_function.cache_clear()


def filled(generator):
    """A cache, the rows' tables in shuffled blocks, and a row's keys and values in order."""
    cache = KVCache(CacheShape(1, KV_HEADS, HEAD_DIM, torch.float32, BLOCK), 32, torch.device("cpu"))
    for pool in (*cache.keys, *cache.values):
        pool.normal_(generator=generator)
    free = torch.randperm(32, generator=generator).tolist()
    tables = [[free.pop() for _ in range(length // BLOCK + 1)] for length in LENGTHS]
    return cache, tables


def attend(cache, tables, lengths, new, shape, pad=0):
    context = native.NativeDecodeContext(cache, native.decode_function(GROUP, HEAD_DIM, BLOCK), tables, lengths, pad)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, pad)) for part in new]
    return context.attend(0, *padded, shape)


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


def test_a_row_does_not_feel_the_others():
    generator = torch.Generator().manual_seed(1)
    cache, tables = filled(generator)
    new = [torch.randn(n, len(LENGTHS), HEAD_DIM, generator=generator) for n in (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)]
    together = attend(cache, tables, LENGTHS, new, SHAPES["plain"])
    for row, length in enumerate(LENGTHS):
        alone = attend(cache, [tables[row]], [length], [part[:, row : row + 1] for part in new], SHAPES["plain"])
        assert torch.equal(together[row], alone[0])


def test_compiled_once(monkeypatch):
    native.decode_function(5, 8, BLOCK)
    native.decode_function.cache_clear()
    compiled = []
    monkeypatch.setattr(native, "_compile", lambda *given: compiled.append(given))
    assert native.decode_function(5, 8, BLOCK) is not None and compiled == []


def test_without_a_compiler_the_engine_says_so(tiny_folder, make_engine, prompt, ask, monkeypatch):
    prompts = [prompt(5), prompt(30)]
    with_it = make_engine(tiny_folder)
    assert with_it.runner.native and with_it.capabilities.remarks == ()
    native.decode_function.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    without = make_engine(tiny_folder)
    assert without.runner.native is None and "there is no C compiler" in without.capabilities.remarks[0]
    greedy = Sampling(12, do_sample=False)
    both = [[completion.ids for completion in ask(engine, prompts, greedy)] for engine in (with_it, without)]
    assert both[0] == both[1]


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(native.CannotCompileError, match="broken-cc failed: no such option"):
        native.decode_function(2, 8, BLOCK)
