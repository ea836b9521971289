"""Attention of packed rows as one operation: on a CPU its plain products, against torch's own."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from burnish.models.attention import causal_attention
from burnish.models.flash import packed_product
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
    output, normalizer = packed_product(*ours, STARTS, max(LENGTHS), 0.3, window, causal)
    expected = row_by_row(*theirs, window, causal)
    torch.testing.assert_close(output, expected)
    assert normalizer.shape == (4, 11)
    (output * pull).sum().backward()
    (expected * pull).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_torchs_rules_for_operations_hold():
    given = (*(x.detach().float().requires_grad_() for x in stream()), STARTS, max(LENGTHS), 0.3, 0, True)
    found = torch.library.opcheck(packed_product, given)
    assert set(found.values()) == {"SUCCESS"}


def test_a_row_sees_no_other():
    query, key, value = (x.detach() for x in stream())
    before = packed_product(query, key, value, STARTS, 6, 0.3, 0, True)[0]
    key[:4] += 1.0
    after = packed_product(query, key, value, STARTS, 6, 0.3, 0, True)[0]
    assert not torch.equal(before[1:4], after[1:4]) and torch.equal(before[4:], after[4:])
