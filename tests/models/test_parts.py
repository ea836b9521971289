"""Backbone and head, and the models whose head is not what it seems."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, GraniteConfig, PhiConfig

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.logprobs import chunk_logits
from burnish.models.parts import backbone, check_head, head_weight, logit_softcap

SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def packed(family_folder):
    return load_causal_lm(ModelSource(family_folder), PACKED, torch.float32).eval()


def test_backbone_then_head_is_the_model(packed):
    ids = torch.arange(3, 12)[None]
    common = {"input_ids": ids, "use_cache": False, "segments": [9]}
    hidden = backbone(packed)(**common).last_hidden_state[0]
    ours = chunk_logits(hidden, head_weight(packed), 1.0, logit_softcap(packed))
    torch.testing.assert_close(ours, packed(**common).logits[0], rtol=0, atol=1e-5)


def test_check_head_accepts_the_families(packed):
    assert check_head(packed, segments=[4]) is None


def test_softcap_is_read_from_the_config(packed, family_folder):
    assert logit_softcap(packed) == (3.0 if "gemma2" in family_folder else None)


def test_check_head_sees_a_cap_that_only_we_apply(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32).eval()
    model.config.final_logit_softcapping = 0.5  # Qwen2's own code knows no cap
    with pytest.raises(UserError, match="computes its logits"):
        check_head(model, segments=[4])


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**SIZES, logits_scaling=8.0), CohereConfig(**SIZES, logit_scale=0.0625)],
    ids=["granite", "cohere"],
)
def test_scaled_logits_are_refused(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=f"{type(model).__name__} computes its logits") as caught:
        check_head(model)
    assert caught.value.key == "actor_rollout_ref.model.path"


def test_scale_of_one_is_accepted():
    torch.manual_seed(0)
    assert check_head(AutoModelForCausalLM.from_config(GraniteConfig(**SIZES, logits_scaling=1.0))) is None


def test_a_head_with_a_bias_is_refused():
    model = AutoModelForCausalLM.from_config(PhiConfig(**SIZES))
    with pytest.raises(UserError, match="no linear head without bias"):
        head_weight(model)


def test_tied_head_is_the_embedding(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    assert head_weight(model) is model.get_input_embeddings().weight
