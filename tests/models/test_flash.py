"""Attention of packed rows as one operation: on a CPU its plain products, against torch's own."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from burnish.models import flash
from burnish.models.attention import causal_attention
from burnish.models.flash import check_shared_keys, packed_product
from burnish.models.varlen import AttentionShape

LENGTHS = [4, 1, 6]
STARTS = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)


def stream() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(11, heads, 8, generator=generator, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    ]


def row_by_row(query, key, value, window: int, causal: bool) -> torch.Tensor:
    shape, parts = AttentionShape(0.3, window or None), []
    for start, end in itertools.pairwise(STARTS.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        product = (
            causal_attention(q, k, v, shape)
            if causal
            else F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)
        )
        parts.append(product[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize(("window", "causal"), [(0, True), (3, True), (0, False)])
def test_rows_and_their_gradients(window, causal):
    pull = torch.randn(11, 4, 8, dtype=torch.float64)
    ours, theirs = stream(), stream()
    output, normalizer = packed_product(*ours, STARTS, STARTS, max(LENGTHS), max(LENGTHS), 0.3, window, causal)
    expected = row_by_row(*theirs, window, causal)
    torch.testing.assert_close(output, expected)
    assert normalizer.shape == (4, 11)
    (output * pull).sum().backward()
    (expected * pull).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_torchs_rules_for_operations_hold():
    lengths = (STARTS, STARTS, max(LENGTHS), max(LENGTHS))
    given = (*(x.detach().float().requires_grad_() for x in stream()), *lengths, 0.3, 0, True)
    found = torch.library.opcheck(packed_product, given)
    assert set(found.values()) == {"SUCCESS"}


def test_a_row_sees_no_other():
    query, key, value = (x.detach() for x in stream())
    before = packed_product(query, key, value, STARTS, STARTS, 6, 6, 0.3, 0, True)[0]
    key[:4] += 1.0
    after = packed_product(query, key, value, STARTS, STARTS, 6, 6, 0.3, 0, True)[0]
    assert not torch.equal(before[1:4], after[1:4]) and torch.equal(before[4:], after[4:])


@pytest.mark.parametrize("window", [0, 3])
def test_queries_may_be_those_of_the_last_keys(window):
    """Two sequences of three and one tokens of their own behind prompts of four and five."""
    starts, key_starts = (torch.tensor(offsets, dtype=torch.int32) for offsets in ([0, 3, 4], [0, 7, 13]))
    generator = torch.Generator().manual_seed(1)
    key, value, whole = (
        torch.randn(13, heads, 8, generator=generator, dtype=torch.float64, requires_grad=True) for heads in (2, 2, 4)
    )
    last = torch.tensor([4, 5, 6, 12])
    output, _ = packed_product(whole[last], key, value, starts, key_starts, 3, 7, 0.3, window, True)
    expected, _ = packed_product(whole, key, value, key_starts, key_starts, 7, 7, 0.3, window, True)
    torch.testing.assert_close(output, expected[last])
    pull = torch.randn(4, 4, 8, generator=generator, dtype=torch.float64)
    ours = torch.autograd.grad((output * pull).sum(), (key, value, whole))
    theirs = torch.autograd.grad((expected[last] * pull).sum(), (key, value, whole))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_kernel_that_takes_other_queries_is_found(monkeypatch):
    check_shared_keys(torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(flash, "packed_product", FirstQueries())
    with pytest.raises(AssertionError, match="not close"):
        check_shared_keys(torch.device("cpu"), torch.bfloat16)


class FirstQueries:
    """In the first call, queries are those of the first keys."""

    def __init__(self):
        self.calls = 0

    def __call__(self, query, key, value, starts, key_starts, *options):
        self.calls += 1
        if self.calls == 1:
            kept = torch.tensor([0, 1, 7, 8, 9])
            key, value, key_starts = key[kept], value[kept], starts
        return packed_product(query, key, value, starts, key_starts, *options)
