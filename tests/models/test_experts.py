"""Experts of mixtures under autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from burnish.models.experts import AUTOCAST, TRANSFORMERS, autocast_mixtures
from burnish.models.routing import is_router
from tests.conftest import SIZES

CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(**SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "deepseek": DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": SIZES["num_attention_heads"]},
        **{"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "q_lora_rank": None},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 0},
        **{"n_group": 1, "topk_group": 1},
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_cast_and_get_gradients_in_their_own_dtype(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    assert model.config._experts_implementation == TRANSFORMERS
    autocast_mixtures(model)
    assert model.config._experts_implementation == AUTOCAST and AUTOCAST not in model.config.to_json_string()
    experts = model.model.layers[0].mlp.experts
    narrow = copy.deepcopy(experts).to(torch.bfloat16)
    hidden = torch.randn(5, SIZES["hidden_size"])
    chosen, weights = torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0], [2, 1]]), torch.rand(5, 2)
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        output = experts(hidden, chosen, weights)
        assert torch.equal(output, narrow(hidden, chosen, weights))
    output.sum().backward()
    for parameter in experts.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32 and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_routers_compute_as_with_weights_of_16_bits(name):
    """DeepSeek's computes in float32 whatever the weights are, which autocast would undo."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    (router,) = (module for module in model.model.layers[0].modules() if is_router(module))
    torch.nn.init.normal_(router.weight)
    narrow = copy.deepcopy(router)
    narrow.weight.data = narrow.weight.data.to(torch.bfloat16)
    autocast_mixtures(model)
    hidden = torch.randn(50, SIZES["hidden_size"])
    with torch.backends.mkldnn.flags(enabled=False):
        expected = narrow(hidden.to(torch.bfloat16))
        with torch.autocast("cpu", torch.bfloat16):
            found = router(hidden)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    found[0].sum().backward()
    assert router.weight.dtype == torch.float32 and router.weight.grad.abs().sum() > 0


def test_without_autocast_nothing_is_cast():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"])
    ids = torch.arange(3, 12)[None]
    before = model(ids).logits
    autocast_mixtures(model)
    assert torch.equal(model(ids).logits, before)


def test_a_dense_model_stays_as_it_is():
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES))
    before = model.config._experts_implementation
    autocast_mixtures(model)
    assert model.config._experts_implementation == before
