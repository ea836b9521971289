"""The stream that vLLM gets: whole, checked, tied weights under all their names, experts one by one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from burnish.models.load import ModelSource
from burnish.rollout.engines.checkpoint_stream import Weights, layer_of, write_files
from burnish.rollout.engines.vllm.worker import read_files

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4}


@pytest.fixture
def weights(tiny_folder):
    return Weights(ModelSource(tiny_folder))


def test_a_tied_head_goes_out_under_both_names(weights, their_model, tiny_folder):
    given = dict(their_model(tiny_folder).named_parameters())
    assert "lm_head.weight" not in given
    stream = weights.stream(given.items())
    sent = dict(stream)
    stream.check()
    assert sent.keys() == given.keys() | {"lm_head.weight"}
    assert torch.equal(sent["lm_head.weight"], given["model.embed_tokens.weight"])


def test_what_comes_under_both_names_is_not_doubled(weights, their_model, tiny_folder):
    given = list(their_model(tiny_folder).named_parameters(remove_duplicate=False))
    sent = [name for name, _ in weights.stream(given)]
    assert sorted(sent) == sorted(name for name, _ in given)


def test_a_gap_and_a_wrong_shape_are_errors(weights, their_model, tiny_folder):
    given = list(their_model(tiny_folder).named_parameters())
    stream = weights.stream(given[:-1])
    assert len(list(stream)) == len(given)  # one is missing, the tied head is added
    with pytest.raises(ValueError, match="left out"):
        stream.check()
    with pytest.raises(ValueError, match="the stream has shape"):
        list(weights.stream([(given[0][0], given[0][1][:2])]))


def test_experts_go_out_as_a_checkpoint_has_them(tmp_path):
    """transformers keeps all experts of a layer in one tensor; a checkpoint, and so vLLM, has them one by one."""
    config = Qwen3MoeConfig(**SMALL, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=4)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    weights = Weights(ModelSource(str(tmp_path)))
    sent, saved = dict(weights.stream(model.named_parameters())), dict(read_files(str(tmp_path)))
    assert weights.has_experts and "model.layers.0.mlp.experts.2.up_proj.weight" in saved
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_files_carry_the_stream(weights, their_model, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.rollout.engines.checkpoint_stream.FILE_BYTES", 4000)
    sent = dict(weights.stream(their_model(tiny_folder).named_parameters()))
    write_files(sent.items(), tmp_path)
    read = dict(read_files(str(tmp_path)))
    assert len(list(tmp_path.iterdir())) > 2
    assert read.keys() == sent.keys() and all(torch.equal(read[name], sent[name]) for name in sent)


def test_layers():
    assert layer_of("model.layers.11.mlp.up_proj.weight") == layer_of("model.layers.11.input_layernorm.weight")
    assert layer_of("model.layers.1.mlp.up_proj.weight") != layer_of("model.layers.11.mlp.up_proj.weight")
    assert layer_of("lm_head.weight") == "lm_head.weight"
