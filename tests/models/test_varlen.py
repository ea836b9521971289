"""flash-attn's call, with a stand-in for the library: it is not there on a CPU."""

import itertools
import sys
import types

import pytest
import torch

from burnish.errors import UserError
from burnish.models import attention
from burnish.models.attention import PACKED_VARLEN, causal_attention, packed_function, register, varlen_attention
from burnish.models.varlen import (
    AttentionShape,
    Segments,
    check_varlen,
    torch_attention,
    torch_kernel_applies,
    varlen_product,
)

GPU = torch.device("cuda")
KEY = "actor_rollout_ref.model.attn_implementation"


def flash(query, key, value, starts, key_starts, longest, key_longest, **options):
    """What flash-attn computes, segment by segment; the options it was given are kept beside it."""
    flash.options = {**options, "longest": (longest, key_longest)}
    window = options.get("window_size", (-1, 0))[0]
    shape = AttentionShape(options["softmax_scale"], None if window < 0 else window + 1, options.get("softcap"))
    parts = []
    for start, end in itertools.pairwise(starts.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None].float() for x in (query, key, value))
        parts.append(causal_attention(q, k, v, shape)[0].transpose(0, 1))
    return torch.cat(parts).to(query.dtype)


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", types.SimpleNamespace(flash_attn_varlen_func=flash))


@pytest.mark.parametrize(
    "shape", [AttentionShape(0.5), AttentionShape(0.5, window=2), AttentionShape(0.5, softcap=2.0)]
)
def test_rows_of_different_lengths_in_one_call(library, shape):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(9, 4, 8, generator=generator).half()
    key, value = (torch.randn(9, 2, 8, generator=generator).half() for _ in range(2))
    found = varlen_product(2, query, key, value, [4, 5], shape, dropout=0.0)
    q, k, v = (x[4:].transpose(0, 1)[None].float() for x in (query, key, value))
    wanted = causal_attention(q, k, v, shape)[0].transpose(0, 1)
    torch.testing.assert_close(found[4:].float(), wanted, rtol=0, atol=1e-3)
    assert flash.options["causal"] and flash.options["longest"] == (5, 5)


def test_the_packed_function_hands_on_its_stream(library):
    query = torch.randn(1, 4, 9, 8).half()
    key = value = torch.randn(1, 2, 9, 8).half()
    output, _ = varlen_attention(2, torch.nn.Identity(), query, key, value, None, segments=[4, 5], scaling=0.5)
    assert output.shape == (1, 9, 4, 8)


def test_the_library_gets_the_format_of_autocast(library):
    """Under a float32 residual stream rotary embeddings leave queries and keys in float32."""
    query, key = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    given = (torch.nn.Identity(), query, key, key.bfloat16(), None)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = varlen_attention(2, *given, segments=[4, 5], scaling=0.5)
    assert output.dtype == torch.bfloat16


def test_float32_is_refused(library):
    stream = torch.randn(3, 2, 8)
    with pytest.raises(UserError, match="16-bit dtypes only"):
        varlen_product(2, stream, stream, stream, [3], AttentionShape(1.0), 0.0)


def test_without_a_gpu_or_the_library_it_says_so(monkeypatch):
    with pytest.raises(UserError, match="NVIDIA GPUs only"):
        check_varlen(2, torch.device("cpu"), KEY, "flash_attention_2")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(UserError, match="pip install flash-attn"):
        packed_function("flash_attention_2", GPU, KEY)


def test_names_of_products(library):
    register()
    assert packed_function("flash_attention_2", GPU, KEY) == PACKED_VARLEN[2]
    assert packed_function(None, GPU, KEY) == packed_function("sdpa", torch.device("cpu"), KEY)
    with pytest.raises(UserError, match="not supported for packed sequences"):
        packed_function("flex_attention", GPU, KEY)


def test_packed_attention_uses_torchs_own_kernel_where_it_fits(monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "torch_attention", lambda *given: calls.append(given[3]) or torch_attention(*given))
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda query, shape, dropout: shape.softcap is None)
    query, key = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    found = [
        attention.packed_attention(torch.nn.Identity(), query, key, key, None, segments=[4, 5], scaling=0.5, **options)[
            0
        ]
        for options in ({}, {"product": causal_attention})
    ]
    assert [rows.lengths for rows in calls] == [[4, 5]]
    torch.testing.assert_close(*found)


def test_queries_are_in_the_format_of_autocast(monkeypatch):
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda query, shape, dropout: query.dtype == torch.bfloat16)
    query, value = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8).bfloat16()
    given = (torch.nn.Identity(), query, value.float(), value, None)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attention.packed_attention(*given, segments=[4, 5], scaling=0.5)
    assert output.dtype == torch.bfloat16


def test_where_torchs_own_kernel_fits():
    class Query:
        device, dtype, shape = torch.device("cuda"), torch.bfloat16, (1, 2, 9, 64)

    plain = AttentionShape(1.0)
    assert torch_kernel_applies(Query, plain, 0.0)
    assert not torch_kernel_applies(Query, plain, 0.1)
    assert not torch_kernel_applies(Query, AttentionShape(1.0, softcap=30.0), 0.0)
    others = {"device": torch.device("cpu"), "dtype": torch.float32}
    for name, value in (*others.items(), ("shape", (1, 2, 9, 60)), ("shape", (1, 2, 9, 512))):
        assert not torch_kernel_applies(type("Other", (Query,), {name: value}), plain, 0.0)


def test_where_rows_start_is_sent_once():
    segments = Segments.of([4, 5], torch.device("cpu"))
    starts = segments.starts
    assert starts.tolist() == [0, 4, 9] and starts.dtype == torch.int32 and segments.longest == 5
    assert Segments.of(segments, torch.device("cpu")).starts is starts and list(segments) == [4, 5]
