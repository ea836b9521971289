"""Products, norms and gates in C are those of torch, row by row; what is not the same is left to the class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from burnish.rollout.builtin.native.layers import Layers, take_over
from burnish.rollout.engine import Sampling

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


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma3RMSNorm])
def test_norms_of_both_kinds(layers, kind):
    norm = kind(40, eps=1e-5)
    norm.weight.data = numbers(40)
    rows = numbers(3, 7, 40)
    expected = norm(rows)
    take_over(norm, layers)
    assert "forward" in vars(norm)
    torch.testing.assert_close(norm(rows), expected, rtol=1e-5, atol=1e-6)
    norm.weight.data *= 3
    assert not torch.allclose(norm(rows), expected), "it reads the weight that it has now"


class OtherNorm(Qwen2RMSNorm):
    def forward(self, rows):
        return super().forward(rows) + 0.001


class OtherMlp(nn.Module):
    """A gate, up and down whose forward is another."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act_fn = nn.GELU()

    def forward(self, rows):
        return self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))


def test_what_is_not_the_same_is_left_to_the_class(layers):
    model = nn.ModuleList([OtherNorm(8), OtherMlp(), nn.LayerNorm(8)])
    take_over(model, layers)
    assert not any("forward" in vars(module) for module in model)
    assert "forward" in vars(model[1].gate_proj), "its products are plain"


def test_an_engine_computes_in_c_what_its_class_computes(family_folder, make_engine, prompt, ask, monkeypatch):
    called = []
    for name in ("product", "norm", "gate"):
        own = getattr(Layers, name)

        def note(self, *given, name=name, own=own):
            called.append(name)
            return own(self, *given)

        monkeypatch.setattr(Layers, name, note)
    engine = make_engine(family_folder)
    called.clear()  # they were tried
    ask(engine, [prompt(9)], Sampling(3, do_sample=False, ignore_eos=True))
    gated = set() if "gemma" in engine.runner.model.config.model_type else {"gate"}  # theirs is another
    assert set(called) == {"product", "norm"} | gated
    assert engine.runner.native.layers.packed
    engine.sleep()
    assert not engine.runner.native.layers.packed, "laid-out weights sleep too"
