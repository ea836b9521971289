"""A part is computed in C only where that is the same; what is not stays with the class."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2RMSNorm

from burnish.native.layers import Layers
from burnish.native.taking import ROTATE, take_over
from burnish.native.taught import TaughtLayers


@pytest.fixture(params=[Layers, TaughtLayers])
def layers(request):
    return request.param()


def numbers(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma3RMSNorm])
def test_norms_of_both_kinds(layers, kind):
    norm = kind(40, eps=1e-5)
    norm.weight.data = numbers(40)
    rows = numbers(3, 7, 40)
    expected = norm(rows)
    take_over(norm, layers)
    assert type(norm) is not kind and isinstance(norm, kind) and type(norm).__name__ == kind.__name__
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
    assert type(plain).forward.__code__ is Qwen2Attention.forward.__code__, "it is the class's own"
    assert type(plain).forward.__globals__[ROTATE] is not Qwen2Attention.forward.__globals__[ROTATE]
    monkeypatch.setattr(modeling_qwen2, ROTATE, other_rotation)
    take_over(other, layers)
    assert type(other) is Qwen2Attention


def test_what_is_not_the_same_is_left_to_the_class(layers):
    model = nn.ModuleList([OtherNorm(8), OtherMlp(), nn.LayerNorm(8)])
    assert take_over(model, layers) == (3 if layers.product else 0), "its products are plain"
    assert [type(module) for module in model] == [OtherNorm, OtherMlp, nn.LayerNorm]


def test_copies_read_their_own_weights(layers):
    norm = Qwen2RMSNorm(8)
    take_over(norm, layers)
    other = copy.deepcopy(norm)
    other.weight.data *= 3
    rows = numbers(2, 8)
    torch.testing.assert_close(other(rows), 3 * norm(rows))


def gradients(model, ids):
    output = model(input_ids=ids, use_cache=False).logits
    model.zero_grad()
    output.square().mean().backward()
    return [output, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "gemma2"])
def test_a_model_that_is_taught_is_the_same_model(kind):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **sizes, **heads, attn_implementation="eager")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    ids = torch.randint(1, 40, (1, 9))
    expected = gradients(model, ids)
    assert take_over(model, TaughtLayers()) >= 2 * 2 + 1 + 2, "norms and rotations of both layers"
    for one, other in zip(gradients(model, ids), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_what_c_does_not_know_goes_the_old_way(layers):
    """Several rows of tokens, and other formats."""
    norm = Qwen2RMSNorm(8)
    config = Qwen2Config(hidden_size=8, intermediate_size=12)
    mlp = modeling_qwen2.Qwen2MLP(config)
    rows = numbers(2, 3, 8)
    cosine, sine = numbers(2, 3, 8), numbers(2, 3, 8)
    query = numbers(2, 4, 3, 8)
    expected = modeling_qwen2.apply_rotary_pos_emb(query, query, cosine, sine)[0]
    attention = Qwen2Attention(Qwen2Config(hidden_size=16, num_attention_heads=2, num_key_value_heads=1), 0)
    normed, gated = norm(rows.bfloat16()), copy.deepcopy(mlp).bfloat16()(rows.bfloat16())
    take_over(nn.ModuleList([norm, mlp, attention]), layers)
    rotate = type(attention).forward.__globals__[ROTATE]
    assert torch.equal(rotate(query, query, cosine, sine)[0], expected)
    assert torch.equal(norm(rows.bfloat16()), normed)
    if layers.product is None:  # an engine's products know one format only
        assert torch.equal(mlp.bfloat16()(rows.bfloat16()), gated)


def test_weights_get_the_same_whatever_the_threads():
    layers, rows, weight, slope = Layers(), numbers(1000, 96), numbers(96), numbers(1000, 96)
    one = layers.norm_backward(rows, weight, 0.0, 1e-6, slope)
    torch.set_num_threads(2)
    try:
        two = layers.norm_backward(rows, weight, 0.0, 1e-6, slope)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
