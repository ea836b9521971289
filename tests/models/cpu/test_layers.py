"""Products, norms, gates and rotations in C are those of torch, row by row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from burnish.models.cpu.layers import Layers

COUNTS = [1, 2, 5, 6, 7, 11, 12, 13, 24, 25, 95, 96, 97, 200]


@pytest.fixture
def layers():
    return Layers()


def numbers(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (7, 5), (64, 32), (48, 33), (33, 259)])
def test_product(layers, depth, width, biased):
    weight, bias = numbers(width, depth), numbers(width) if biased else None
    rows = numbers(max(COUNTS), depth)
    whole = layers.product(rows, weight, bias)
    torch.testing.assert_close(whole, F.linear(rows, weight, bias), rtol=1e-5, atol=1e-5)
    for count in COUNTS:
        assert torch.equal(layers.product(rows[:count], weight, bias), whole[:count]), count
        assert torch.equal(layers.product(rows[-count:], weight, bias), whole[-count:]), count


def test_two_threads_change_no_bit(layers):
    rows, weight = numbers(200, 96), numbers(300, 96)
    one = layers.product(rows, weight, None)
    torch.set_num_threads(2)
    try:
        layers.forget()
        assert torch.equal(layers.product(rows, weight, None), one)
    finally:
        torch.set_num_threads(1)


def test_rows_may_be_parts_of_wider_ones(layers):
    wide, weight = numbers(2, 5, 40), numbers(8, 16)
    part = wide[..., 10:26]
    torch.testing.assert_close(layers.product(part, weight, None), F.linear(part, weight), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layers.gate(part, wide[..., :16]), F.silu(part) * wide[..., :16], rtol=1e-5, atol=1e-6)
    assert torch.equal(layers.norm(part, weight[0], 0.0, 1e-6), layers.norm(part.clone(), weight[0], 0.0, 1e-6))


def test_new_weights_are_laid_out_anew(layers):
    rows, weight = numbers(3, 8), numbers(4, 8)
    before = layers.product(rows, weight, None)
    weight.mul_(2)
    assert torch.equal(layers.product(rows, weight, None), before), "nobody said that they changed"
    layers.forget()
    assert torch.equal(layers.product(rows, weight, None), before * 2)


def test_gate_at_the_ends(layers):
    gate = torch.tensor([[-1e30, -100.0, -1.0, 0.0, 1.0, 100.0, 1e30]])
    found = layers.gate(gate, torch.ones_like(gate))
    torch.testing.assert_close(found, F.silu(gate), rtol=1e-6, atol=1e-30)


def test_rotation(layers):
    """As attention has them: heads of a wider row, one angle per row."""
    wide, angle = numbers(1, 7, 5 * 6), numbers(1, 7, 6)
    query = wide[..., :18].view(1, 7, 3, 6).transpose(1, 2)
    cosine, sine = angle.cos(), angle.sin()
    expected = apply_rotary_pos_emb(query, query, cosine, sine)[0]
    found = layers.rotate(query, cosine, sine)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(layers.rotate(query[:, :, 2:3], cosine[:, 2:3], sine[:, 2:3]), found[:, :, 2:3])
