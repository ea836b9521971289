"""Modules backed by C kernels: which modules of a family are replaced, and that they compute what the family does."""

from __future__ import annotations

import copy
from collections import Counter

import peft
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2MLP, Qwen2RMSNorm

from burnish.models.cpu.autograd import DifferentiableLayers
from burnish.models.cpu.layers import Layers
from burnish.models.cpu.modules import ROTATE, CpuAttention, CpuGatedMLP, CpuLinear, CpuRMSNorm
from burnish.models.cpu.replace import replace_with_cpu_kernels

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "vocab_size": 40,
    "head_dim": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "attention_dropout": 0.0,
}
# The modules of two layers and the final norm, without linear layers.
QWEN2 = {"CpuRMSNorm": 5, "CpuGatedMLP": 2, "CpuAttention": 2}
HEAD_NORMS = {"CpuRMSNorm": 9, "CpuGatedMLP": 2}
FAMILIES = {
    "qwen2": QWEN2,
    "llama": QWEN2,
    "mistral": QWEN2,
    "granite": QWEN2,
    "smollm3": QWEN2,
    "gemma": {"CpuRMSNorm": 5, "CpuAttention": 2},  # their MLPs use GELU
    "gemma2": {"CpuRMSNorm": 9, "CpuAttention": 2},
    "gemma3_text": {"CpuRMSNorm": 13, "CpuTransposedHeadNormAttention": 2},
    "qwen3": {**HEAD_NORMS, "CpuHeadNormAttention": 2},
    "hunyuan_v1_dense": {**HEAD_NORMS, "CpuRotatedNormAttention": 2},
    "olmo2": {**HEAD_NORMS, "CpuRowNormAttention": 2},
    "phi3": {"CpuRMSNorm": 5, "CpuFusedProjectionAttention": 2},  # its MLP joins gate and up
    "glm": {"CpuRMSNorm": 5},  # rotates pairs of neighbors
    "glm4_moe": {**QWEN2},  # rotates half of each head, which its own function does
}


@pytest.fixture(params=[Layers, DifferentiableLayers])
def kernels(request):
    return request.param()


def random(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def build(family, **overrides):
    config = AutoConfig.for_model(family, **{**SIZES, **overrides}, attn_implementation="eager")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape)
    return model


def replaced(model):
    kinds = Counter(type(module).__name__ for module in model.modules())
    return {kind: count for kind, count in kinds.items() if kind.startswith("Cpu")}


def outputs(model, ids):
    """Logits, and the gradients of all parameters where there are any."""
    logits = model(input_ids=ids, use_cache=False).logits
    if not logits.requires_grad:
        return [logits]
    model.zero_grad()
    logits.square().mean().backward()
    return [logits, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("family", FAMILIES)
def test_choice_and_results_per_family(family):
    model, ids = build(family), torch.randint(1, 40, (1, 9), generator=torch.Generator().manual_seed(0))
    names = [name for name, _ in model.named_parameters()]
    parameters, keys = list(model.parameters()), list(model.state_dict())
    inference = copy.deepcopy(model).eval().requires_grad_(False)
    expected, state = outputs(model, ids), torch.get_rng_state()
    assert replace_with_cpu_kernels(model, DifferentiableLayers()) == sum(FAMILIES[family].values())
    assert replaced(model) == FAMILIES[family]
    for one, other in zip(outputs(model, ids), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    replace_with_cpu_kernels(inference, Layers())
    linear = sum(isinstance(module, nn.Linear) for module in inference.modules())
    assert replaced(inference) == {**FAMILIES[family], "CpuLinear": linear}
    torch.testing.assert_close(outputs(inference, ids)[0], expected[0], rtol=1e-3, atol=1e-4)
    assert [name for name, _ in model.named_parameters()] == names and list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(torch.get_rng_state(), state), "probes consume no global random numbers"


def test_layers_without_rotary_embedding_stay():
    model = build("smollm3", no_rope_layers=[1, 0])
    replace_with_cpu_kernels(model, DifferentiableLayers())
    kinds = [type(layer.self_attn).__name__ for layer in model.model.layers]
    assert kinds == ["CpuAttention", "SmolLM3Attention"]


@pytest.mark.parametrize("clip", [None, 8.0])
def test_attention_that_clips_its_activations_stays(clip):
    model = build("olmo", clip_qkv=clip)
    replace_with_cpu_kernels(model, DifferentiableLayers())
    assert replaced(model).get("CpuAttention", 0) == (0 if clip else 2)


def test_dropout_of_the_output_is_kept():
    model, ids = build("seed_oss", residual_dropout=0.5).train(), torch.arange(1, 9)[None]
    torch.manual_seed(3)
    expected = outputs(model, ids)[0]
    replace_with_cpu_kernels(model, DifferentiableLayers())
    assert replaced(model)["CpuAttention"] == 2
    torch.manual_seed(3)
    torch.testing.assert_close(outputs(model, ids)[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma3RMSNorm])
def test_norms_of_both_kinds(kernels, kind):
    norm = kind(40, eps=1e-5)
    norm.weight.data = random(40)
    rows = random(3, 7, 40)
    expected, parent = norm(rows), nn.ModuleDict({"norm": norm})
    assert replace_with_cpu_kernels(parent, kernels) == 1
    torch.testing.assert_close(parent["norm"](rows), expected, rtol=1e-5, atol=1e-6)
    norm.weight.data *= 3
    assert not torch.allclose(parent["norm"](rows), expected), "the parameter is shared"


class OtherNorm(Qwen2RMSNorm):
    def forward(self, rows):
        return super().forward(rows) + 0.001


class OtherMlp(nn.Module):
    """The submodules of a gated MLP with another activation."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act_fn = nn.GELU()

    def forward(self, rows):
        return self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))


def other_rotation(query, key, cosine, sine):
    return query * cosine[:, None], key * sine[:, None]


def small_attention(**sizes):
    config = Qwen2Config(**{"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, **sizes})
    return Qwen2Attention(config, 0)


def test_another_rotation_stays(kernels, monkeypatch):
    monkeypatch.setattr(modeling_qwen2, ROTATE, other_rotation)
    parent = nn.ModuleList([small_attention()])
    replace_with_cpu_kernels(parent, kernels)
    assert type(parent[0]) is Qwen2Attention


def test_modules_that_compute_something_else_stay(kernels):
    model = nn.ModuleList([OtherNorm(8), OtherMlp(), nn.LayerNorm(8)])
    assert replace_with_cpu_kernels(model, kernels) == (3 if kernels.product else 0), "the linear layers of the MLP"
    assert [type(module) for module in model] == [OtherNorm, OtherMlp, nn.LayerNorm]


def test_copies_have_their_own_weights(kernels):
    model = nn.ModuleList([Qwen2RMSNorm(8)])
    replace_with_cpu_kernels(model, kernels)
    other = copy.deepcopy(model)
    other[0].weight.data *= 3
    rows = random(2, 8)
    torch.testing.assert_close(other[0](rows), 3 * model[0](rows))


def test_a_module_with_two_parents_is_replaced_once(kernels):
    norm = Qwen2RMSNorm(8)
    model = nn.ModuleDict({"one": norm, "other": nn.ModuleList([norm])})
    assert replace_with_cpu_kernels(model, kernels) == 1
    assert type(model["one"]) is CpuRMSNorm and model["one"] is model["other"][0]


def test_weights_load_and_assign(kernels):
    """load_state_dict, also with new parameter objects in place of the shared ones."""
    model, other = (nn.ModuleList([Qwen2MLP(Qwen2Config(hidden_size=8, intermediate_size=12))]) for _ in range(2))
    replace_with_cpu_kernels(model, kernels)
    assert type(model[0]) is CpuGatedMLP and isinstance(model[0].gate_proj, nn.Linear)
    rows = random(2, 8)
    for assign in (False, True):
        for parameter in other.parameters():
            parameter.data = random(*parameter.shape)
        model.load_state_dict(other.state_dict(), assign=assign)
        if kernels.product is not None:
            kernels.forget()
        torch.testing.assert_close(model[0](rows), other[0](rows))


def test_unsupported_inputs_are_computed_by_torch(kernels):
    """Several rows of tokens, partial rotation and other dtypes."""
    parts = [Qwen2RMSNorm(8), Qwen2MLP(Qwen2Config(hidden_size=8, intermediate_size=12)), small_attention(head_dim=8)]
    originals, model = copy.deepcopy(nn.ModuleList(parts)), nn.ModuleList(parts)
    replace_with_cpu_kernels(model, kernels)
    norm, mlp, attention = model
    assert isinstance(attention, CpuAttention)
    query, cosine, sine, rows = random(2, 4, 3, 8), random(2, 3, 8), random(2, 3, 8), random(2, 3, 8)
    rotated = modeling_qwen2.apply_rotary_pos_emb(query, query, cosine, sine)
    assert torch.equal(attention.rotate(query, query, cosine, sine)[0], rotated[0])
    seen = []
    attention.family_rotate = lambda *tensors: seen.append(tensors)
    attention.rotate(query[:1], query[:1], cosine[:1, :, :4], sine[:1, :, :4])
    assert len(seen) == 1
    expected = originals[0](rows.bfloat16())
    assert norm(rows.bfloat16()).dtype == torch.bfloat16 and torch.equal(norm(rows.bfloat16()), expected)
    if kernels.product is None:  # CpuLinear knows float32 only
        assert torch.equal(mlp.bfloat16()(rows.bfloat16()), originals[1].bfloat16()(rows.bfloat16()))


def test_adapters_and_optimizers_after_replacement():
    """peft finds CpuLinear, wraps it, and trains; the optimizer holds the parameters of the original model."""
    model, ids = build("qwen2"), torch.arange(1, 9)[None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace_with_cpu_kernels(model, DifferentiableLayers())
    before = outputs(model, ids)[0]
    optimizer.step()
    assert not torch.allclose(outputs(model, ids)[0], before)
    inference = build("qwen2").requires_grad_(False)
    replace_with_cpu_kernels(inference, Layers())
    assert isinstance(inference.lm_head, CpuLinear)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), inference)
    assert type(inference.model.layers[0].self_attn.q_proj.base_layer) is CpuLinear
    torch.testing.assert_close(outputs(inference.eval(), ids)[0], outputs(build("qwen2"), ids)[0], rtol=1e-3, atol=1e-4)


def test_norm_gradients_do_not_depend_on_threads():
    layers, rows, weight, grad = Layers(), random(1000, 96), random(96), random(1000, 96)
    one = layers.norm_backward(rows, weight, 0.0, 1e-6, grad)
    torch.set_num_threads(2)
    try:
        two = layers.norm_backward(rows, weight, 0.0, 1e-6, grad)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
