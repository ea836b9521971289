"""Keys about images and videos that do not fit the model, and names of multimodal models."""

from __future__ import annotations

from functools import partial

import pytest

from burnish.config import load
from burnish.config.vision_names import VLLM_TYPES, names_vision, unsupported_family, unsupported_type, vision_type
from burnish.config.vision_rules import check_engine_sees, check_vision, vllm_in_process
from burnish.rollout.engines.vllm.media import FAMILIES

ACTOR = "actor_rollout_ref.actor"


def keys_of(*overrides: str, sees: bool, job: str = "train", videos: bool = True) -> list[str | None]:
    cfg = load(overrides, job=job, check=False).cfg
    return [error.key for error in check_vision(cfg, sees=sees, videos=videos)]


@pytest.mark.parametrize(
    ("override", "job"),
    [
        ("data.image_key=pictures", "train"),
        ("data.video_key=films", "train"),
        ("data.mm_processor_kwargs={max_pixels:1000}", "train"),
        (f"{ACTOR}.freeze_vision_tower=true", "train"),
        ("data.image_key=pictures", "sft"),
        ("model.freeze_vision_tower=true", "sft"),
        ("data.video_key=films", "generate"),
    ],
)
def test_a_text_model_takes_no_pictures(override, job):
    assert keys_of(override, sees=False, job=job) == [override.partition("=")[0]]
    assert keys_of(override, sees=True, job=job) == []
    assert keys_of(sees=False, job=job) == keys_of("data.image_key=images", sees=False, job=job) == []


def test_no_pictures_at_all_is_fine_for_every_model():
    for sees in (False, True):
        assert keys_of("data.image_key=null", "data.video_key=null", sees=sees) == []


def test_engines_and_families_that_lack_something_are_refused():
    assert keys_of("actor_rollout_ref.rollout.name=sglang", sees=True) == ["actor_rollout_ref.rollout.name"]
    assert keys_of("actor_rollout_ref.rollout.name=sglang", sees=False) == []
    assert keys_of("rollout.name=sglang", sees=True, job="generate") == ["rollout.name"]
    assert keys_of("data.video_key=films", sees=True, videos=False) == ["data.video_key"]
    text = ("data.image_key=null", "data.video_key=null")
    assert keys_of("actor_rollout_ref.rollout.name=sglang", *text, sees=True) == []


def test_what_vllm_cannot_be_shown_is_refused():
    vllm, options = "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.engine_kwargs.vllm"
    assert VLLM_TYPES == FAMILIES

    def keys(*overrides: str, model_type: str = "qwen2_vl", check=check_engine_sees) -> list[str | None]:
        return [error.key for error in check(load([vllm, *overrides], check=False).cfg, model_type=model_type)]

    assert keys() == [] and keys(model_type="gemma3") == [vllm.partition("=")[0]]
    for option in ("base_url=http://localhost:1", "python=/venv/bin/python"):
        assert keys(f"{options}.{option}") == [f"{options}.{option.partition('=')[0]}"]
        assert keys(f"{options}.{option}", "data.image_key=null", "data.video_key=null") == []
    before_data = partial(keys, model_type="gemma3", check=partial(check_vision, sees=True))
    assert before_data() == [] and before_data("data.image_key=pictures") == [vllm.partition("=")[0]]


def test_a_vllm_server_becomes_engines_in_their_processes():
    words = ["rollout.name=vllm", "rollout.mode=async", "rollout.tensor_model_parallel_size=2"]
    cfg = load(words, job="generate", check=False).cfg
    changed, notices = vllm_in_process(cfg)
    assert changed.rollout.mode == "sync" and changed.rollout.tensor_model_parallel_size == 2 and len(notices) == 1
    assert cfg.rollout.mode == "async" and vllm_in_process(changed) == (changed, [])


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2_vl"),
        ("/models/Qwen2.5-VL-7B-Instruct/", "qwen2_5_vl"),
        ("qwen25_vl_3b", "qwen2_5_vl"),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
        ("HuggingFaceTB/SmolVLM-Instruct", "idefics3"),
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "smolvlm"),
        ("google/gemma-3-4b-it", "gemma3"),
        *((name, None) for name in ("google/gemma-3-1b-it", "google/gemma-3-270m", "Qwen/Qwen3-8B", "gpt2", "")),
        *((name, None) for name in ("OpenGVLab/InternVL3-8B", "llava-onevision-qwen2-vl", "Kimi-VL-A3B")),
    ],
)
def test_the_family_of_a_name(name, family):
    assert vision_type(name) == family


def test_a_name_may_say_no_more_than_that_the_model_sees():
    assert names_vision("someone/my-vl-7b") and vision_type("someone/my-vl-7b") is None
    assert unsupported_family("someone/my-vl-7b") is None
    assert not names_vision("someone/vllm-test")


def test_the_config_decides_about_the_family():
    assert unsupported_type({"model_type": "internvl", "vision_config": {}}) == "internvl"
    assert unsupported_type({"model_type": "qwen2_audio", "audio_config": {}}) == "qwen2_audio"
    assert unsupported_type({"model_type": "qwen2_5_vl", "vision_config": {}}) is None
    assert unsupported_type({"model_type": "llama"}) is None
