"""Shapes: parameters counted from a config are those of the model; known models have their published sizes."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.doctor.known_shapes import KNOWN
from burnish.doctor.roles import value_parameters
from burnish.doctor.shapes import EXACT, Shape, find_shape, known_name, shape_of
from burnish.errors import UserError
from burnish.rollout.engines.builtin.model_runner import cached_heads
from tests.training.layouts import MODELS

from .meter import Small

# Billions of parameters, from the model cards.
PUBLISHED = {
    "qwen2.5-0.5b": 0.49,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.61,
    "qwen2.5-14b": 14.7,
    "qwen2.5-32b": 32.5,
    "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.6,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.0,
    "qwen3-8b": 8.2,
    "qwen3-14b": 14.8,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "llama-3.2-1b": 1.23,
    "llama-3.2-3b": 3.21,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.6,
    "deepseek-llm-7b": 6.91,
    "mistral-7b": 7.24,
    "gemma-2-2b": 2.61,
    "gemma-2-9b": 9.24,
    "smollm2-135m": 0.135,
    "smollm2-1.7b": 1.71,
    "qwen2-vl-2b": 2.21,
    "qwen2-vl-7b": 8.29,
    "qwen2.5-vl-3b": 3.75,
    "qwen2.5-vl-7b": 8.29,
    "qwen2.5-vl-32b": 33.5,
    "qwen2.5-vl-72b": 73.4,
    "qwen3-vl-2b": 2.13,
    "qwen3-vl-4b": 4.44,
    "qwen3-vl-8b": 8.77,
    "qwen3-vl-30b-a3b": 31.1,
    "smolvlm-256m": 0.256,
    "smolvlm-500m": 0.507,
    "smolvlm-instruct": 2.25,
    "gemma-3-4b": 4.3,
    "gemma-3-12b": 12.2,
    "gemma-3-27b": 27.4,
    "deepseek-v3": 671,
}


@pytest.mark.parametrize("family", EXACT)
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_counted(family, tied):
    small = Small(family, tie_word_embeddings=tied)
    parameters = list(small.model.parameters())
    assert small.shape.exact
    assert small.shape.parameters == sum(parameter.numel() for parameter in parameters)
    assert small.shape.tensors == len(parameters)


@pytest.mark.parametrize("name", ["mixtral", "qwen3 mixture", "deepseek", "deepseek, whole queries"])
def test_every_parameter_of_a_mixture_is_counted(name):
    """With dense layers among the others, shared experts and latent attention."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MODELS[name])
    config = MODELS[name].to_dict()
    shape = shape_of(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    if name == "deepseek":
        assert shape.dense_layers == 1 and cached_heads(MODELS[name]) == (shape.kv_heads, shape.head_dim)
        assert shape.cache_per_token(2, latent=True) == 2 * 4 * (8 + 4) < shape.cache_per_token(2)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_biases_are_counted(family):
    small = Small(family, attention_bias=True)
    assert small.shape.parameters == sum(parameter.numel() for parameter in small.model.parameters())


def test_a_value_model_is_the_backbone_and_a_value_head():
    small = Small("qwen2")
    small.model.config.num_labels = 1
    critic = AutoModelForTokenClassification.from_config(small.model.config)
    assert value_parameters(small.shape) == sum(parameter.numel() for parameter in critic.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_models_have_their_published_size(name):
    assert Shape(**KNOWN[name]).all_parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.012)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("/models/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "smolvlm2-500m"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("~/models/deepseek-llm-7b-chat", "deepseek-llm-7b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("google/gemma-2-2b-it", "gemma-2-2b"),
        ("google/gemma-2b", "gemma-2b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("qwen25_7b", "qwen2.5-7b"),
        ("my-own-model", None),
    ],
)
def test_names_are_recognised(path, name):
    assert known_name(path) == name


def test_a_config_file_goes_before_the_name(tmp_path):
    folder = tmp_path / "Qwen2.5-7B"
    folder.mkdir()
    small = Small("qwen2")
    (folder / "config.json").write_text(json.dumps(small.model.config.to_dict(), default=str))
    assert find_shape(str(folder)).shape == small.shape
    assert find_shape(str(folder), {"num_hidden_layers": 1}).shape.layers == 1
    assert find_shape(str(folder), {"model_config": {"num_hidden_layers": 2}}).shape.layers == 2


def test_a_hub_name_is_found_in_the_local_cache(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--some--thing" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(Small("llama").model.config.to_dict(), default=str))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_shape("some/thing").shape.family == "llama"


def test_all_experts_count_and_some_are_active():
    shape = Shape(**KNOWN["qwen3-30b-a3b"])
    assert not shape.exact
    assert shape.active_intermediate == 8 * 768


def test_the_error_of_an_unknown_model_names_the_option():
    with pytest.raises(UserError, match=r"--shape qwen2\.5-7b"):
        find_shape("my-own-model")


def test_a_config_without_sizes_is_refused():
    with pytest.raises(UserError, match="num_attention_heads"):
        shape_of({"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 10})
