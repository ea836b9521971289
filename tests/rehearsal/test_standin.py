"""A stand-in is a tiny model of the same family; a local config.json keeps everything but its sizes."""

from __future__ import annotations

import pytest
from PIL import Image
from transformers import AutoConfig, AutoModelForSequenceClassification, Gemma2Config, Qwen3MoeConfig

from burnish.config import load
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.vision.encoder import load_vision_encoder
from burnish.rehearsal.families import CHATML, FAMILIES, family_of_config, family_of_name
from burnish.rehearsal.models import replace_models
from burnish.rehearsal.plan import Plan
from burnish.rehearsal.standin import byte_tokenizer, local_folder, make_stand_in, tiny_config

NAMES = {
    "Qwen/Qwen2.5-7B-Instruct": "qwen2",
    "there/models/Qwen/Qwen3-4B/": "qwen3",
    "Qwen/Qwen3-30B-A3B-Base": "qwen3_moe",
    "there/models/Qwen/Qwen1.5-MoE-A2.7B-Chat": "qwen2_moe",
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


def test_missing_parts_are_named():
    assert "latent attention" in family_of_name("deepseek-ai/DeepSeek-V3").missing
    assert not family_of_name("someone/their-model").known


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_stand_in_with_a_chat_template(tmp_path, family):
    name = next((name for name, known in NAMES.items() if known == family), "google/gemma-3-1b-it")
    stand_in = make_stand_in(name, tmp_path)
    config, tokenizer = AutoConfig.from_pretrained(tmp_path), load_tokenizer(str(tmp_path), key="model")
    assert config.model_type == family == stand_in.family.name
    assert config.hidden_size <= 64 and config.num_hidden_layers == 2
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "¿2+2? 一"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "¿2+2? 一" in text and tokenizer.decode(ids) == text
    assert max(ids) < config.vocab_size
    assert config.eos_token_id == tokenizer.convert_tokens_to_ids(stand_in.family.chat.eos)


def test_a_local_config_keeps_everything_but_its_sizes():
    real = Gemma2Config(num_attention_heads=16, num_key_value_heads=8, sliding_window=128, final_logit_softcapping=7.0)
    small = tiny_config(family_of_config(real), byte_tokenizer(CHATML), real)
    assert small.num_attention_heads == 2 * small.num_key_value_heads
    assert (small.sliding_window, small.final_logit_softcapping) == (128, 7.0)
    assert small.layer_types == ["sliding_attention", "full_attention"]


def test_experts_are_few():
    real = Qwen3MoeConfig(num_experts=128, num_experts_per_tok=8, mlp_only_layers=[3])
    small = tiny_config(family_of_config(real), byte_tokenizer(CHATML), real)
    assert (small.num_experts, small.num_experts_per_tok, small.mlp_only_layers) == (4, 2, [])
    assert small.num_attention_heads // small.num_key_value_heads == 8


def test_a_local_models_tokenizer_and_template_are_used(tiny_folder, tmp_path):
    stand_in = make_stand_in(tiny_folder, tmp_path)
    assert stand_in.real_config and stand_in.real_tokenizer and stand_in.real_template
    assert load_tokenizer(str(tmp_path), key="model").get_vocab() == load_tokenizer(tiny_folder, key="m").get_vocab()
    assert "from its config.json" in stand_in.line("m")


def test_a_reward_model_has_one_score(tmp_path):
    make_stand_in("sfairXC/FsfairX-LLaMA3-RM-v0.1", tmp_path, reward_model=True)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.num_labels == 1 and model.config.model_type == "llama"


def test_nothing_is_downloaded():
    assert local_folder("Qwen/Qwen2.5-7B-Instruct") is None
    assert local_folder("/no/such/folder") is None


def test_the_config_of_another_folder_describes_the_model(tmp_path):
    """MindSpeed RL's `load` names no family; the config does."""
    keys = {"path": "./ckpt", "hf_config_path": "./Qwen3-8B", "tokenizer_path": "./Qwen3-8B"}
    loaded = load([f"actor_rollout_ref.model.{key}={value}" for key, value in keys.items()], check=False)
    settings = {key: setting.value for key, setting in loaded.settings.items()}
    stand_in = replace_models(Plan("train", loaded.cfg, settings, tmp_path))
    assert stand_in is not None
    assert stand_in.family.name == "qwen3"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "smolvlm"),
        ("google/gemma-3-4b-it", "gemma3"),
        ("/models/Qwen3-VL-235B-A22B-Instruct", "qwen3_vl"),
    ],
)
def test_a_vision_model_has_a_stand_in_that_sees(tmp_path, name, family):
    stand_in = make_stand_in(name, tmp_path)
    config, tokenizer = AutoConfig.from_pretrained(tmp_path), load_tokenizer(str(tmp_path), key="model")
    assert stand_in.sees and config.model_type == family
    assert ("experts" in stand_in.family.missing) is ("A22B" in name)
    text = "¿2+2? 一 \U0001f642 \x00"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    encoder = load_vision_encoder(ModelSource(str(tmp_path)), tokenizer)
    (media,) = encoder.encode(f"{encoder.placeholders['image']}?", [Image.new("RGB", (56, 56))]).media
    assert media.num_tokens > 0


def test_a_name_that_only_says_that_the_model_sees_gets_some_stand_in(tmp_path):
    stand_in = make_stand_in("someone/my-vl-7b", tmp_path)
    assert stand_in.sees and "unknown family" in stand_in.line("someone/my-vl-7b")
