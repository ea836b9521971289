"""Which modules of a family are replaced, and that the replacements compute what the family does."""

from __future__ import annotations

import copy
from collections import Counter

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Qwen2Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2MLP, Qwen2RMSNorm

from burnish.models.cpu.autograd import DifferentiableLayers
from burnish.models.cpu.layers import Layers
from burnish.models.fused.linear import FusedLinear, ProductLinear
from burnish.models.fused.modules import ROTATE, FusedAttention, FusedMLP, KernelRMSNorm
from burnish.models.fused.replace import replace_modules
from burnish.sizing import COMPILED_FAMILIES, CUDA_GRAPH_FAMILIES

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
# The modules of two layers and the final norm that are replaced in training, without a fused product.
LLAMA = {"KernelRMSNorm": 5, "FusedMLP": 2, "FusedAttention": 2}
HEAD_NORMS = {"KernelRMSNorm": 9, "FusedMLP": 2}
FAMILIES = {
    "qwen2": LLAMA,
    "llama": LLAMA,
    "mistral": LLAMA,
    "granite": LLAMA,
    "smollm3": LLAMA,
    "gemma": {"KernelRMSNorm": 5, "FusedAttention": 2},  # their MLPs use GELU
    "gemma2": {"KernelRMSNorm": 9, "FusedAttention": 2},
    "gemma3_text": {"KernelRMSNorm": 13, "TransposedHeadNormAttention": 2},
    "qwen3": {**HEAD_NORMS, "HeadNormAttention": 2},
    "hunyuan_v1_dense": {**HEAD_NORMS, "RotatedNormAttention": 2},
    "olmo2": {**HEAD_NORMS, "RowNormAttention": 2},
    "phi3": {"KernelRMSNorm": 5, "OneProjectionAttention": 2},  # its MLP has one projection for gate and up
    "glm": {"KernelRMSNorm": 5},  # rotates pairs of neighbors
    "glm4_moe": LLAMA,  # rotates half of each head, which its own function does
}
# Replaced where products are fused, though no kernel fits.
GELU = {"FusedMLP": 2}
FUSED = {"gemma": GELU, "gemma2": GELU, "gemma3_text": GELU, "glm": {"FusedAttention": 2}}


@pytest.fixture(params=[Layers, DifferentiableLayers])
def kernels(request):
    return request.param()


def replace(model, kernels):
    """As an engine does (`Layers`), or as training does."""
    return replace_modules(model, kernels, getattr(kernels, "product", None))


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
    """By what kind of module, without linear layers."""
    modules = [module for module in model.modules() if type(module).__module__ == KernelRMSNorm.__module__]
    return Counter(type(module).__name__ for module in modules)


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
    inference, plain = (copy.deepcopy(model).eval().requires_grad_(False) for _ in range(2))
    expected, state = outputs(model, ids), torch.get_rng_state()
    assert replace_modules(model, DifferentiableLayers(), product=None) == sum(FAMILIES[family].values())
    assert replaced(model) == FAMILIES[family]
    for one, other in zip(outputs(model, ids), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert [name for name, _ in model.named_parameters()] == names and list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    layers, fused = Layers(), {**FAMILIES[family], **FUSED.get(family, {})}
    replace_modules(inference, layers, layers.product)
    assert replaced(inference) == fused
    assert all(type(module) is ProductLinear for module in inference.modules() if isinstance(module, nn.Linear))
    torch.testing.assert_close(outputs(inference, ids)[0], expected[0], rtol=1e-3, atol=1e-4)
    replace_modules(plain, None, F.linear)
    del fused["KernelRMSNorm"]
    assert replaced(plain) == fused
    torch.testing.assert_close(outputs(plain, ids)[0], expected[0], rtol=1e-5, atol=1e-6)
    for fused_model in (inference, plain):
        assert list(fused_model.state_dict()) == keys
        products = sum(isinstance(module, FusedLinear) for module in fused_model.modules())
        assert products == sum(fused.values()) - fused.get("OneProjectionAttention", 0)
    assert torch.equal(torch.get_rng_state(), state), "probes consume no global random numbers"


@pytest.mark.parametrize("family", sorted(CUDA_GRAPH_FAMILIES | COMPILED_FAMILIES))
def test_families_that_are_captured_or_compiled_have_two_products_in_each_layer(family):
    model = AutoModel.from_config(AutoConfig.for_model(family, **{**SIZES, "num_hidden_layers": 4}))
    replace_modules(model.requires_grad_(False), None, F.linear)
    assert sum(isinstance(module, FusedLinear) for module in model.modules()) == 8


def test_layers_without_rotary_embedding():
    model, ids = build("smollm3", no_rope_layers=[1, 0]), torch.arange(1, 9)[None]
    expected = outputs(model, ids)[0]
    replace_modules(model, DifferentiableLayers(), product=None)
    kinds = [type(layer.self_attn).__name__ for layer in model.model.layers]
    assert kinds == ["FusedAttention", "UnrotatedAttention"]
    torch.testing.assert_close(outputs(model, ids)[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("clip", [None, 8.0])
def test_attention_that_clips_its_activations_stays(clip):
    model = build("olmo", clip_qkv=clip)
    replace_modules(model, DifferentiableLayers(), product=None)
    assert replaced(model).get("FusedAttention", 0) == (0 if clip else 2)


def test_dropout_of_the_output_is_kept():
    """Also of a model that is replaced as it is loaded, and then trains."""
    model, ids = build("seed_oss", residual_dropout=0.5).train(), torch.arange(1, 9)[None]
    torch.manual_seed(3)
    expected = outputs(model, ids)[0]
    replace_modules(model.eval(), DifferentiableLayers(), product=None)
    model.train()
    assert replaced(model)["FusedAttention"] == replaced(model)["FusedMLP"] == 2
    torch.manual_seed(3)
    torch.testing.assert_close(outputs(model, ids)[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma3RMSNorm])
def test_norms_of_both_kinds(kernels, kind):
    norm = kind(40, eps=1e-5)
    norm.weight.data = random(40)
    rows = random(3, 7, 40)
    expected, parent = norm(rows), nn.ModuleDict({"norm": norm})
    assert replace(parent, kernels) == 1
    torch.testing.assert_close(parent["norm"](rows), expected, rtol=1e-5, atol=1e-6)
    norm.weight.data *= 3
    assert not torch.allclose(parent["norm"](rows), expected), "the parameter is shared"


class OtherNorm(Qwen2RMSNorm):
    def forward(self, rows):
        return super().forward(rows) + 0.001


class OtherMlp(nn.Module):
    """The submodules of a gated MLP, and one more operation."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act_fn = nn.SiLU()

    def forward(self, rows):
        return self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows)) * 0.99


def other_rotation(query, key, cosine, sine):
    return query * cosine[:, None], key * sine[:, None]


def small_attention(**sizes):
    config = Qwen2Config(**{"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, **sizes})
    return Qwen2Attention(config, 0)


def test_another_rotation_is_the_familys(kernels, monkeypatch):
    """Where products are fused, attention is replaced all the same."""
    monkeypatch.setattr(modeling_qwen2, ROTATE, other_rotation)
    parent = nn.ModuleList([small_attention()])
    replace(parent, kernels)
    assert type(parent[0]) is (FusedAttention if isinstance(kernels, Layers) else Qwen2Attention)
    assert getattr(parent[0], "kernels", None) is None


def test_modules_that_compute_something_else_stay(kernels):
    model = nn.ModuleList([OtherNorm(8), OtherMlp(), nn.LayerNorm(8)])
    assert replace(model, kernels) == (3 if isinstance(kernels, Layers) else 0), "the linear layers of the MLP"
    assert [type(module) for module in model] == [OtherNorm, OtherMlp, nn.LayerNorm]


def test_copies_have_their_own_weights(kernels):
    model = nn.ModuleList([Qwen2RMSNorm(8)])
    replace(model, kernels)
    other = copy.deepcopy(model)
    other[0].weight.data *= 3
    rows = random(2, 8)
    torch.testing.assert_close(other[0](rows), 3 * model[0](rows))


def test_a_module_with_two_parents_is_replaced_once(kernels):
    norm = Qwen2RMSNorm(8)
    model = nn.ModuleDict({"one": norm, "other": nn.ModuleList([norm])})
    assert replace(model, kernels) == 1
    assert type(model["one"]) is KernelRMSNorm and model["one"] is model["other"][0]


def test_weights_load_and_assign(kernels):
    """load_state_dict, also with new parameter objects in place of the shared ones."""
    model, other = (nn.ModuleList([Qwen2MLP(Qwen2Config(hidden_size=8, intermediate_size=12))]) for _ in range(2))
    replace(model, kernels)
    assert type(model[0]) is FusedMLP and isinstance(model[0].gate_proj, nn.Linear)
    rows = random(2, 8)
    for assign in (False, True):
        for parameter in other.parameters():
            parameter.data = random(*parameter.shape)
        model.load_state_dict(other.state_dict(), assign=assign)
        if isinstance(kernels, Layers):
            kernels.forget()
        torch.testing.assert_close(model[0](rows), other[0](rows))


def test_unsupported_inputs_are_computed_by_torch(kernels):
    """Several rows of tokens, partial rotation and other dtypes."""
    parts = [Qwen2RMSNorm(8), Qwen2MLP(Qwen2Config(hidden_size=8, intermediate_size=12)), small_attention(head_dim=8)]
    originals, model = copy.deepcopy(nn.ModuleList(parts)), nn.ModuleList(parts)
    replace(model, kernels)
    norm, mlp, attention = model
    assert isinstance(attention, FusedAttention)
    query, cosine, sine, rows = random(2, 4, 3, 8), random(2, 3, 8), random(2, 3, 8), random(2, 3, 8)
    rotated = modeling_qwen2.apply_rotary_pos_emb(query, query, cosine, sine)
    assert torch.equal(attention.rotate(query, query, cosine, sine)[0], rotated[0])
    seen = []
    attention.family_rotate = lambda *tensors: seen.append(tensors)
    attention.rotate(query[:1], query[:1], cosine[:1, :, :4], sine[:1, :, :4])
    assert len(seen) == 1
    expected = originals[0](rows.bfloat16())
    assert norm(rows.bfloat16()).dtype == torch.bfloat16 and torch.equal(norm(rows.bfloat16()), expected)
    if isinstance(kernels, DifferentiableLayers):  # ProductLinear knows float32 only
        assert torch.equal(mlp.bfloat16()(rows.bfloat16()), originals[1].bfloat16()(rows.bfloat16()))


def test_adapters_and_optimizers_after_replacement():
    """peft finds ProductLinear, wraps it, and trains; the optimizer holds the parameters of the original model."""
    model, ids = build("qwen2"), torch.arange(1, 9)[None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace_modules(model, DifferentiableLayers(), product=None)
    before = outputs(model, ids)[0]
    optimizer.step()
    assert not torch.allclose(outputs(model, ids)[0], before)
    inference = build("qwen2").requires_grad_(False)
    replace(inference, Layers())
    assert isinstance(inference.lm_head, ProductLinear)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), inference)
    assert type(inference.model.layers[0].self_attn.q_proj.base_layer) is ProductLinear
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
