"""The invariant kernels in Triton's interpreter: against float64, and that a row's bits do not depend on other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from burnish.models.invariant.functions import packed_spans
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels import sample
from burnish.models.kernels.invariant import Spans
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.models.varlen import AttentionShape, Segments


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of which small inputs fill several, and products that are added up as on a GPU."""
    for name, size in {"ROWS": 16, "COLUMNS": 16, "QUERIES": 16, "KEYS": 16, "DEPTH_BYTES": 64}.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(sample, "CHUNK", 64)
    with ordered_products():
        yield


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture
def noise():
    generator = torch.Generator().manual_seed(0)
    return lambda *size, dtype=torch.float32: torch.randn(size, generator=generator).to(dtype)


def assert_close(found, expected):
    tolerance = 1e-5 if found.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def test_products(noise, dtype):
    rows, sizes = noise(37, 40, dtype=dtype), (35, 16, 7)
    weights, biases = [noise(size, 40, dtype=dtype) for size in sizes], [noise(size, dtype=dtype) for size in sizes]
    whole = kernels.product(rows, weights, biases)
    pairs = zip(weights, biases, strict=True)
    assert_close(whole, torch.cat([F.linear(rows.double(), w.double(), b.double()) for w, b in pairs], dim=1))
    for part in (slice(0, 1), slice(5, 6), slice(3, 36)):
        assert torch.equal(kernels.product(rows[part], weights, biases), whole[part])
    alone = kernels.product(rows, weights[1:2], [None])
    assert_close(alone, rows.double() @ weights[1].double().t())
    out = torch.zeros(50, 16, dtype=dtype)
    assert torch.equal(kernels.product(rows, weights[1:2], [None], out=out[:37]), alone) and not out[37:].any()
    assert kernels.product(rows[:0], weights, biases).shape == (0, 58)


def test_rows_of_norms_and_gates(noise, dtype):
    stream, weight = 3 * noise(9, 40), noise(40, dtype=dtype)
    normed = kernels.rms_norm(stream, weight, 1e-6, dtype)
    assert normed.dtype == dtype
    assert_close(normed, F.rms_norm(stream.double(), (40,), weight.double(), 1e-6))
    assert torch.equal(kernels.rms_norm(stream[4:7], weight, 1e-6, dtype), normed[4:7])
    joined = noise(5, 24, dtype=dtype)
    gate, up = joined.double().chunk(2, dim=1)
    assert_close(kernels.gated(joined), F.silu(gate) * up)


@pytest.mark.parametrize("normed", [False, True])
def test_rotation(noise, dtype, normed):
    heads, kv_heads, dim = 4, 2, 8
    joined, norms = noise(6, 8 * dim, dtype=dtype), (noise(dim, dtype=dtype), noise(dim, dtype=dtype))
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.03])
    angles = torch.arange(6).double()[:, None] * frequencies.double()
    cos, sin = kernels.rotary_tables(torch.arange(6), frequencies, 1.0)
    assert_close(cos, angles.cos())
    assert_close(sin, angles.sin())
    found = kernels.rotate(joined, cos, sin, heads, kv_heads, norms if normed else None, 1e-6)
    before = joined.double().view(6, 8, dim)[:, :6]
    if normed:
        parts = zip(before.split([heads, kv_heads], dim=1), norms, strict=True)
        before = torch.cat([F.rms_norm(part, (dim,), weight.double(), 1e-6) for part, weight in parts], dim=1)
    left, right = before.chunk(2, dim=-1)
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    assert_close(found, torch.cat([left * c - right * s, right * c + left * s], dim=-1))
    late = kernels.rotary_tables(torch.tensor([5]), frequencies, 1.0)
    assert torch.equal(kernels.rotate(joined[5:], *late, heads, kv_heads, norms if normed else None, 1e-6)[0], found[5])


def by_hand(query, key, value, shape):
    """Causal attention of one segment in float64: [T, heads, d], and the log-sum-exp of the scores [heads, T]."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (query, key, value))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * shape.scaling
    place = torch.arange(len(query))
    distance = place[:, None] - place
    scores = scores.masked_fill((distance < 0) | (distance >= (shape.window or len(query))), float("-inf"))
    return (scores.softmax(-1) @ v.repeat_interleave(group, 0)).transpose(0, 1), scores.logsumexp(-1)


@pytest.mark.parametrize("window", [None, 20])
def test_attention_of_training_prefill_and_decoding(noise, dtype, window):
    """The packed stream, a prompt in two pieces, and single tokens over a scattered cache: equal bits."""
    lengths, shape = [5, 50], AttentionShape(0.3, window=window)
    query, key, value = noise(55, 3, 8, dtype=dtype), noise(55, 1, 8, dtype=dtype), noise(55, 1, 8, dtype=dtype)
    spans = packed_spans(Segments(lengths), 3, torch.device("cpu"))
    packed, normalizer = kernels.attend(
        query.transpose(0, 1), *(x.transpose(0, 1)[None] for x in (key, value)), spans, shape
    )
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        expected, weights = by_hand(query[rows], key[rows], value[rows], shape)
        assert_close(packed[rows], expected)
        torch.testing.assert_close(normalizer[:, rows].double(), weights, rtol=1e-5, atol=1e-5)
        start += length

    table = torch.tensor([[4, 1]], dtype=torch.int32)  # blocks of 32 tokens of the second segment
    keys, values = (torch.zeros(6, 1, 32, 8, dtype=dtype) for _ in range(2))
    for pool, new in ((keys, key), (values, value)):
        pool[4, 0], pool[1, 0, :18] = new[5:37, 0], new[37:, 0]
    for first, end in ((0, 50), (23, 50), (49, 50)):
        tiles = torch.tensor([(0, offset) for offset in range(0, end - first, 5)], dtype=torch.int32)
        segment = torch.tensor([[0, end - first, first, 0]], dtype=torch.int32)
        paged = Spans(table, segment, tiles, 32, packed=False)
        found, _ = kernels.attend(query[5 + first : 5 + end].transpose(0, 1), keys, values, paged, shape)
        assert torch.equal(found, packed[5 + first : 5 + end])


def test_log_probs(noise, dtype):
    logits, tokens = 3 * noise(6, 150, dtype=dtype), torch.tensor([0, 149, 63, 64, 100, 5])
    temperature = torch.tensor([1.0, 0.7, 1.3, 1.0, 2.0, 0.5])
    found, normalizer = sample.log_probs_of(logits, temperature, tokens)
    scaled = logits.double() / temperature[:, None]
    torch.testing.assert_close(normalizer.double(), scaled.logsumexp(-1), rtol=1e-5, atol=1e-5)
    expected = scaled.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(sample.log_probs_of(logits[2:4], temperature[2:4], tokens[2:4])[0], found[2:4])
