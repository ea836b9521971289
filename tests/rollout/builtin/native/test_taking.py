"""A part is computed in C only where that is the same; what is not stays with the class."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Qwen2Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2RMSNorm

from burnish.native.layers import Layers
from burnish.rollout.builtin.native.taking import ROTATE, take_over
from burnish.rollout.engine import Sampling


@pytest.fixture
def layers():
    return Layers()


def numbers(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


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


def other_rotation(query, key, cosine, sine):
    return query * cosine[:, None], key * sine[:, None]


def test_a_rotation_of_another_kind_is_left_to_the_class(layers, monkeypatch):
    config = Qwen2Config(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1)
    plain, other = (Qwen2Attention(config, 0) for _ in range(2))
    take_over(plain, layers)
    assert plain.forward.__func__.__code__ is Qwen2Attention.forward.__code__, "it is the class's own"
    assert plain.forward.__func__.__globals__[ROTATE] is not Qwen2Attention.forward.__globals__[ROTATE]
    monkeypatch.setattr(modeling_qwen2, ROTATE, other_rotation)
    take_over(other, layers)
    assert "forward" not in vars(other)


def test_what_is_not_the_same_is_left_to_the_class(layers):
    model = nn.ModuleList([OtherNorm(8), OtherMlp(), nn.LayerNorm(8)])
    take_over(model, layers)
    assert not any("forward" in vars(module) for module in model)
    assert "forward" in vars(model[1].gate_proj), "its products are plain"


def test_an_engine_computes_in_c_what_its_class_computes(family_folder, make_engine, prompt, ask, monkeypatch):
    called = []
    for name in ("product", "norm", "gate", "rotate"):
        own = getattr(Layers, name)

        def note(self, *given, name=name, own=own):
            called.append(name)
            return own(self, *given)

        monkeypatch.setattr(Layers, name, note)
    engine = make_engine(family_folder)
    called.clear()  # they were tried
    ask(engine, [prompt(9)], Sampling(3, do_sample=False, ignore_eos=True))
    gated = set() if "gemma" in engine.runner.model.config.model_type else {"gate"}  # theirs is another
    assert set(called) == {"product", "norm", "rotate"} | gated
    assert engine.runner.native.layers.packed
    engine.sleep()
    assert not engine.runner.native.layers.packed, "laid-out weights sleep too"
