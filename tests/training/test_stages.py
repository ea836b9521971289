"""Cutting a model into stages: which layers a rank holds, what it does not, and which models are refused."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from burnish.errors import UserError
from burnish.training.expert_parallel import check_experts
from burnish.training.stages import Passed, StageOptions, Stages, check_stages, layer_ranges
from tests.conftest import SIZES

SIZE, VIRTUAL = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
FIELDS = "override_transformer_config"


def starts(num_layers, **options):
    return [(layers.start, layers.stop) for layers in layer_ranges(num_layers, StageOptions(**options))]


def test_layers_are_split_evenly_or_as_given():
    assert starts(4, size=2) == [(0, 2), (2, 4)]
    assert starts(8, size=2, virtual=2) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert starts(7, size=3, num_first=1) == [(0, 1), (1, 4), (4, 7)]
    assert starts(7, size=3, num_first=2, num_last=1) == [(0, 2), (2, 6), (6, 7)]
    assert starts(5, size=2, num_last=1) == [(0, 4), (4, 5)]
    assert starts(6, size=2, num_each=(4, 2)) == [(0, 4), (4, 6)]
    assert starts(6, size=2, virtual=2, num_each=(4, 2)) == [(0, 2), (2, 3), (3, 5), (5, 6)]


def test_embedding_and_head_count_as_layers():
    both = {"counts_embedding": True, "counts_head": True}
    sizes = [stop - start for start, stop in starts(94, size=8, **both)]
    assert sizes == [11, *[12] * 6, 11]
    assert starts(6, size=2, virtual=2, **both) == [(0, 1), (1, 3), (3, 5), (5, 6)]
    assert starts(3, size=2, counts_head=True) == [(0, 2), (2, 3)]


@pytest.mark.parametrize(
    ("num_layers", "options", "key", "problem"),
    [
        (3, {"size": 4}, SIZE, "3 layers, fewer than 4 x 1"),
        (4, {"size": 2, "virtual": 4}, VIRTUAL, "4 layers, fewer than 2 x 4"),
        (5, {"size": 2}, SIZE, "do not divide over 2 pipeline stages"),
        (6, {"size": 2, "virtual": 2}, VIRTUAL, "with 3 of the model's 6 layers"),
        (8, {"size": 3, "num_first": 1}, SIZE, "(7 of them over 2)"),
        (4, {"size": 2, "num_first": 4}, f"{FIELDS}.num_layers_in_first_pipeline_stage", "without any"),
        (4, {"size": 2, "num_last": 9}, f"{FIELDS}.num_layers_in_last_pipeline_stage", "without any"),
        (4, {"size": 2, "num_first": 1, "num_last": 1}, SIZE, "do not divide"),
        (4, {"size": 2, "num_each": (1, 2)}, f"{FIELDS}.num_layer_list", "whose sum is the model's 4 layers"),
        (4, {"size": 2, "counts_head": True}, SIZE, "4 layers and 1 parts that count as layers do not divide"),
        (1, {"size": 2, "counts_head": True}, f"{FIELDS}.account_for_loss_in_pipeline_split", "without any"),
        (4, {"size": 2, "num_each": (4,)}, f"{FIELDS}.num_layer_list", "not 2 numbers"),
    ],
)
def test_what_cannot_be_split_is_refused_before_weights_are_loaded(num_layers, options, key, problem):
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": num_layers})
    with pytest.raises(UserError) as caught:
        check_stages(config, StageOptions(key="critic.megatron", **options))
    assert caught.value.key == f"critic.megatron.{key}"
    assert problem in caught.value.problem


def model_of(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def test_a_stage_has_its_own_weights_only_under_their_names():
    config = Qwen3Config(**{**SIZES, "num_hidden_layers": 4}, head_dim=8)
    whole = {name for name, _ in model_of(config).named_parameters()}
    held = []
    for rank in range(2):
        model = model_of(config)
        Stages(model, rank, StageOptions(size=2, virtual=2))
        held.append({name for name, _ in model.named_parameters()})
    assert held[0] | held[1] == whole and not held[0] & held[1]
    assert {name.split(".")[2] for name in held[0] if ".layers." in name} == {"0", "2"}
    assert {name for name in held[0] if ".layers." not in name} == {"model.embed_tokens.weight"}
    assert {name for name in held[1] if ".layers." not in name} == {"model.norm.weight", "lm_head.weight"}


@torch.no_grad()
def test_stages_one_after_the_other_are_the_model():
    config = Qwen3Config(**{**SIZES, "num_hidden_layers": 4}, head_dim=8)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    whole = model_of(config)(input_ids=ids).logits
    stages = [Stages(model_of(config), rank, StageOptions(size=2, virtual=2)) for rank in range(2)]
    given = {"input_ids": ids}
    for chunk in range(2):
        for stage in stages:
            with stage.running(chunk):
                if stage.is_last_stage(chunk):
                    assert torch.equal(stage.model(**given).logits, whole)
                given = {"inputs_embeds": stage.backbone(**given).last_hidden_state}
            assert sum(isinstance(layer, Passed) for layer in stage.layers) == 2


def test_models_that_do_more_between_layers_are_refused():
    config = GraniteConfig(**SIZES, embedding_multiplier=2.0)
    with pytest.raises(UserError, match="changes hidden states outside of its layers"):
        Stages(model_of(config), 0, StageOptions(size=2))


def test_experts_divide_over_ranks():
    key = "critic.megatron.expert_model_parallel_size"
    mixture = Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16)
    check_experts(mixture, 3, key)
    with pytest.raises(UserError) as caught:
        check_experts(mixture, 4, key)
    assert (caught.value.key, caught.value.allowed, caught.value.hint) == (key, [1, 2, 3, 6], f"{key}=3")
    with pytest.raises(UserError, match="has no experts"):
        check_experts(LlamaConfig(**SIZES), 2, key)
