"""Packed attention in C and its gradients, against float64 by torch; how rows are packed changes no bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from burnish.models.cpu import attention
from burnish.models.varlen import AttentionShape, Segments, c_attention, c_kernel_applies

LENGTHS = [1, 2, 15, 16, 17, 47, 48, 49, 100, 130]
HEADS = {"grouped": (4, 2, 32), "each its own": (2, 2, 16), "one for all": (7, 1, 48)}  # heads, kv_heads, size


def streams(heads, kv_heads, size, tokens):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(tokens, n, size, generator=generator) for n in (heads, kv_heads, kv_heads, heads)]
    return [x.requires_grad_() for x in made[:3]], made[3]


def with_gradients(product, streams, slope):
    output = product(*streams)
    return [output, *torch.autograd.grad(output, streams, slope)]


def in_float64(query, key, value, lengths, shape):
    """Row by row, with a mask."""
    outputs = []
    for q, k, v in zip(*(x.double().split(lengths) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * shape.scaling
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v))
    return torch.cat(outputs)


@pytest.mark.parametrize("name", HEADS)
def test_values_and_gradients(name):
    shape = AttentionShape(0.3)
    inputs, slope = streams(*HEADS[name], sum(LENGTHS))
    found = with_gradients(lambda *x: c_attention(*x, LENGTHS, shape), inputs, slope)
    expected = with_gradients(lambda *x: in_float64(*x, LENGTHS, shape), inputs, slope.double())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


def test_large_scores_do_not_overflow():
    inputs, _ = streams(2, 2, 16, 20)
    inputs[0].data *= 1000
    found = c_attention(*inputs, [20], AttentionShape(1.0))
    torch.testing.assert_close(found.double(), in_float64(*inputs, [20], AttentionShape(1.0)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_packing_changes_no_bit(threads):
    shape, (inputs, slope) = AttentionShape(0.2), streams(4, 2, 32, sum(LENGTHS))
    torch.set_num_threads(threads)
    try:
        together = with_gradients(lambda *x: c_attention(*x, LENGTHS, shape), inputs, slope)
    finally:
        torch.set_num_threads(1)
    ends = list(itertools.accumulate(LENGTHS))
    for start, end in zip([0, *ends], ends, strict=False):
        part = slice(start, end)
        own = [x[part].detach().requires_grad_() for x in inputs]
        alone = with_gradients(lambda *x: c_attention(*x, [x[0].shape[0]], shape), own, slope[part])
        assert all(torch.equal(one, other[part]) for one, other in zip(alone, together, strict=True))


def test_strides_are_followed():
    """As a model gives them: heads first, parts of a wider row."""
    wide = torch.randn(9, 4 * 16, generator=torch.Generator().manual_seed(0))
    query, key, value = wide.view(9, 4, 16).split((2, 1, 1), dim=1)
    shape = AttentionShape(0.5)
    found = c_attention(query, key, value, [4, 5], shape)
    assert torch.equal(found, c_attention(query.clone(), key.clone(), value.clone(), [4, 5], shape))
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)]
    assert torch.equal(found, c_attention(*turned, [4, 5], shape))


def test_what_it_is_for(monkeypatch):
    query, plain = torch.zeros(1, 2, 8, 32), AttentionShape(1.0)
    assert c_kernel_applies(query, Segments([8]), plain, 0.0) and c_kernel_applies(
        query, [3, 5], AttentionShape(1.0, window=5), 0.0
    )
    assert not c_kernel_applies(query, [3, 5], AttentionShape(1.0, window=4), 0.0)
    assert not c_kernel_applies(query, [8], AttentionShape(1.0, softcap=30.0), 0.0)
    assert not c_kernel_applies(query, [8], plain, 0.1)
    assert not c_kernel_applies(query.bfloat16(), [8], plain, 0.0)
    assert not c_kernel_applies(query[..., :7], [8], plain, 0.0)
    attention.library.cache_clear()
    attention.compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not c_kernel_applies(query, [8], plain, 0.0)
