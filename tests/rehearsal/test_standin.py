"""A stand-in is of the same family, tiny, and its tokenizer writes any text; a config.json on the disk is shrunk."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, Gemma2Config, Qwen3MoeConfig

from burnish.models.load import load_tokenizer
from burnish.rehearsal.families import CHATML, FAMILIES, family_of_config, family_of_name
from burnish.rehearsal.standin import byte_tokenizer, local_folder, make_stand_in, tiny_config

NAMES = {
    "Qwen/Qwen2.5-7B-Instruct": "qwen2",
    "there/models/Qwen/Qwen3-4B/": "qwen3",
    "Qwen/Qwen3-30B-A3B-Base": "qwen3_moe",
    "there/models/Qwen/Qwen1.5-MoE-A2.7B-Chat": "qwen2_moe",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2",
    "/models/Qwen3-VL-235B-A22B-Instruct": "qwen3_moe",
    "deepseek-ai/deepseek-llm-7b-chat": "llama",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "qwen2",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama",
    "deepseek-ai/DeepSeek-V3": "llama",
    "OpenRLHF/Llama-3-8b-sft-mixture": "llama",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral",
    "mistralai/Mistral-7B-v0.1": "mistral",
    "google/gemma-1.1-7b-it": "gemma",
    "google/gemma-2-9b-it": "gemma2",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_family_by_name(name):
    assert family_of_name(name).name == NAMES[name]


def test_what_is_left_out_is_said():
    assert family_of_name("Qwen/Qwen2.5-VL-7B-Instruct").without == "the vision part"
    assert "latent attention" in family_of_name("deepseek-ai/DeepSeek-V3").without
    assert not family_of_name("someone/his-model").known


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_made_and_writes_a_chat(tmp_path, family):
    name = next((name for name, found in NAMES.items() if found == family), "google/gemma-3-1b-it")
    made = make_stand_in(name, tmp_path)
    config, tokenizer = AutoConfig.from_pretrained(tmp_path), load_tokenizer(str(tmp_path), key="model")
    assert config.model_type == family == made.family.name
    assert config.hidden_size <= 64 and config.num_hidden_layers == 2
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "¿2+2? 一"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "¿2+2? 一" in text and tokenizer.decode(ids) == text
    assert max(ids) < config.vocab_size
    assert config.eos_token_id == tokenizer.convert_tokens_to_ids(made.family.chat.end)


def test_a_config_on_the_disk_is_shrunk_and_keeps_its_shape():
    own = Gemma2Config(num_attention_heads=16, num_key_value_heads=8, sliding_window=128, final_logit_softcapping=7.0)
    small = tiny_config(family_of_config(own), byte_tokenizer(CHATML), own)
    assert small.num_attention_heads == 2 * small.num_key_value_heads
    assert (small.sliding_window, small.final_logit_softcapping) == (128, 7.0)
    assert small.layer_types == ["sliding_attention", "full_attention"]


def test_experts_are_few():
    own = Qwen3MoeConfig(num_experts=128, num_experts_per_tok=8, mlp_only_layers=[3])
    small = tiny_config(family_of_config(own), byte_tokenizer(CHATML), own)
    assert (small.num_experts, small.num_experts_per_tok, small.mlp_only_layers) == (4, 2, [])
    assert small.num_attention_heads // small.num_key_value_heads == 8


def test_the_tokenizer_and_the_template_of_a_model_that_is_here(tiny_folder, tmp_path):
    made = make_stand_in(tiny_folder, tmp_path)
    assert made.own_config and made.own_tokenizer and made.own_template
    assert load_tokenizer(str(tmp_path), key="model").get_vocab() == load_tokenizer(tiny_folder, key="m").get_vocab()
    assert "its own config.json, shrunk" in made.line("m")


def test_a_reward_model_has_one_score(tmp_path):
    make_stand_in("sfairXC/FsfairX-LLaMA3-RM-v0.1", tmp_path, scores=True)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.num_labels == 1 and model.config.model_type == "llama"


def test_nothing_is_fetched():
    assert local_folder("Qwen/Qwen2.5-7B-Instruct") is None
    assert local_folder("/no/such/folder") is None
