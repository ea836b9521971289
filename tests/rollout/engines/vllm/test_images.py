"""Images for vLLM: what its prompts and arguments are made of. No library is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError
from burnish.models.load import ModelSource, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.vision.encoder import load_vision_encoder
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.vllm.arguments import check_kwargs, engine_arguments
from burnish.rollout.engines.vllm.library import token_prompt
from burnish.rollout.engines.vllm.media import expanded_otherwise, kinds_of, with_placeholders

START, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for family in ("qwen2_5_vl", "gemma3"):
        made[family] = tmp_path_factory.mktemp(family)
        make_vision_model(made[family], family)
    return made


@pytest.fixture(scope="module")
def encoder(folders):
    source = ModelSource(path=str(folders["qwen2_5_vl"]))
    return load_vision_encoder(source, load_tokenizer(source.path, key=source.key))


def options(folder, **changes) -> EngineOptions:
    source = ModelSource(path=str(folder), tokenizer_path=str(folder))
    return EngineOptions(source, torch.float32, torch.device("cpu"), (2,), 320, **changes)


def test_an_image_is_one_token_in_a_prompt(encoder):
    images = [Image.new("RGB", (56, 56)), Image.new("RGB", (84, 56))]
    input = encoder.encode(f"a{START}{PAD}{END}b{START}{PAD}{END}c", images)
    ids, shown = with_placeholders(input)
    written = encoder.tokenizer(f"a{START}{PAD}{END}b{START}{PAD}{END}c", add_special_tokens=False)["input_ids"]
    assert list(ids) == written and len(input) == len(ids) + 3 + 5
    assert shown == images
    prompt = token_prompt(ids, shown)
    assert prompt == {"prompt_token_ids": written, "multi_modal_data": {"image": images}}  # a type would skip them
    assert token_prompt([1, 2]) == {"type": "token", "prompt_token_ids": [1, 2]}
    assert "made 9 tokens" in expanded_otherwise(input, [0] * 9).problem


def test_processed_images_alone_are_refused(encoder):
    input = encoder.encode(f"{START}{PAD}{END}", [Image.new("RGB", (56, 56))])
    without = ModelInput(input.ids, tuple(replace(media, source=None) for media in input.media))
    with pytest.raises(UserError, match="needs the images themselves"):
        with_placeholders(without)


def test_families(folders, tiny_folder):
    assert kinds_of(ModelSource(path=str(folders["qwen2_5_vl"]))) == {"image"}
    assert kinds_of(ModelSource(path=str(folders["gemma3"]))) == set()  # other tokens stand around its images
    assert kinds_of(ModelSource(path=tiny_folder)) == set()


def test_arguments(folders, tiny_folder):
    settings = {"max_images": 3, "media_settings": {"max_pixels": 3136}}
    arguments = engine_arguments(options(folders["qwen2_5_vl"], **settings))
    assert arguments["limit_mm_per_prompt"] == {"image": 3}
    assert arguments["mm_processor_kwargs"] == {"max_pixels": 3136}
    assert arguments["skip_tokenizer_init"] is False and arguments["tokenizer"] == str(folders["qwen2_5_vl"])
    text = engine_arguments(options(tiny_folder, **settings))
    assert text["skip_tokenizer_init"] is True and "limit_mm_per_prompt" not in text


def test_the_old_name_of_the_cache(folders):
    """All of verl's scripts for images set it; vLLM has called it otherwise since 0.11."""
    extra = {"disable_mm_preprocessor_cache": True}
    check_kwargs(extra, ["mm_processor_cache_gb"], "actor_rollout_ref.rollout", "0.30")
    assert engine_arguments(options(folders["qwen2_5_vl"], extra=extra))["mm_processor_cache_gb"] == 0
    off = {"disable_mm_preprocessor_cache": False}
    assert "mm_processor_cache_gb" not in engine_arguments(options(folders["qwen2_5_vl"], extra=off))
