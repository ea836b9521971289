"""The vision part of memory plans: its parameters are those of the model, and its memory follows the pictures."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from transformers import AutoModelForImageTextToText

from burnish.config import load
from burnish.config.vision_names import SUPPORTED_TYPES
from burnish.doctor.memory import Shapes, train_plan
from burnish.doctor.rules import Case, find_all
from burnish.doctor.shapes import Shape, find_shape, shape_of
from burnish.models.vision.family import VISION_FAMILIES

CONFIGS = {
    "qwen2_vl": transformers.Qwen2VLConfig,
    "qwen2_5_vl": transformers.Qwen2_5_VLConfig,
    "qwen3_vl": transformers.Qwen3VLConfig,
    "smolvlm": transformers.SmolVLMConfig,
    "idefics3": transformers.Idefics3Config,
    "gemma3": transformers.Gemma3Config,
}
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "vocab_size": 160,
}
GIVEN = ("actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-3B-Instruct", "data.train_files=[t]", "trainer.device=cuda")
IS_TOWER = ("visual", "vision", "connector", "multi_modal")


def tiny(family: str):
    """A model of the family with transformers' default tower, without weights."""
    config = CONFIGS[family](text_config=TEXT)
    if "qwen" in family:
        setattr(config.vision_config, "hidden_size" if family == "qwen2_vl" else "out_hidden_size", 64)
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_parameter_of_the_tower_is_counted(family):
    model = tiny(family)
    shape = shape_of(model.config.to_dict())
    counted = sum(value.numel() for name, value in model.named_parameters() if any(part in name for part in IS_TOWER))
    assert shape.tower is not None and shape.tower.parameters == counted
    assert shape.hidden == 64 and shape.family in ("qwen2", "qwen3", "llama", "gemma3_text")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_language_model_inside_is_counted_like_its_text_family(family):
    model = tiny(family)
    assert shape_of(model.config.to_dict()).all_parameters == sum(value.numel() for value in model.parameters())


def test_a_config_may_leave_out_defaults(tmp_path):
    """As published configs do; Gemma 3's also leave out most of the language model."""
    for family, config in CONFIGS.items():
        full = config().to_dict()
        short = {"model_type": family, "text_config": TEXT, "vision_config": {"unknown": float("inf"), "depth": -1}}
        towers = [shape_of(found).tower for found in ({**full, "text_config": TEXT}, short)]
        assert towers[0] == towers[1], family
    gemma = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "model_type": "gemma3_text"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": gemma, "vision_config": {}})
    )
    shape = find_shape(str(tmp_path)).shape
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab) == (8, 4, 256, 262208)


def test_names_and_families_agree():
    assert set(VISION_FAMILIES.entries) <= SUPPORTED_TYPES


def plan(*overrides: str):
    cfg = load([*GIVEN, *overrides], check=False).cfg
    return train_plan(cfg, Shapes(find_shape("Qwen2.5-VL-3B").shape), 80 * 2**30)


def part(found, phase: str, name: str, role: str = "policy") -> int:
    phases = [each for each in found.phases if each.name == phase]
    return sum(each.bytes for each in phases[0].parts if each.name == name and each.role == role)


def test_the_plan_counts_the_tower_and_a_frozen_one_has_no_gradients():
    full, frozen = plan(), plan("actor_rollout_ref.actor.freeze_vision_tower=true")
    tower = find_shape("Qwen2.5-VL-3B").shape.tower
    assert part(full, "update actor", "weights") == part(frozen, "update actor", "weights")
    saved = part(full, "update actor", "optimizer") - part(frozen, "update actor", "optimizer")
    assert saved == 2 * 4 * tower.parameters
    assert 0 < part(frozen, "update actor", "vision tower") < part(full, "update actor", "vision tower")
    assert part(full, "rollout", "weights", "engine") == 2 * find_shape("Qwen2.5-VL-3B").shape.all_parameters


def test_longer_prompts_hold_more_patches():
    short, long = plan("data.max_prompt_length=256"), plan("data.max_prompt_length=1024")
    assert part(long, "old log-probs", "vision tower") > 2 * part(short, "old log-probs", "vision tower") > 0


def test_text_models_have_no_tower():
    cfg = load([*GIVEN], check=False).cfg
    found = train_plan(cfg, Shapes(find_shape("Qwen2.5-3B").shape), 80 * 2**30)
    assert {each.name for phase in found.phases for each in phase.parts} & {"vision tower"} == set()


@pytest.mark.parametrize(
    ("shape", "overrides", "expected"),
    [
        ("Qwen2.5-VL-3B", (), {"large_pictures"}),
        ("Qwen2.5-VL-3B", ("data.mm_processor_kwargs={max_pixels:200704}",), set()),
        ("Qwen2.5-VL-3B", ("data.max_prompt_length=20000",), set()),
        ("Qwen2.5-VL-3B", ("data.image_key=null", "data.video_key=null"), set()),
        ("gemma-3-4b", ("data.max_prompt_length=256",), {"no_room_for_a_picture"}),
        ("gemma-3-4b", ("data.max_prompt_length=512",), set()),
        ("Qwen2.5-3B", (), set()),
    ],
)
def test_advice_about_tokens_of_pictures(shape, overrides, expected):
    case = Case(load([*GIVEN, *overrides], check=False).cfg, Shapes(find_shape(shape).shape))
    names = {finding.rule for finding in find_all(case)}
    assert names & {"large_pictures", "no_room_for_a_picture"} == expected


def test_the_suggested_size_fits():
    shape: Shape = find_shape("Qwen2.5-VL-3B").shape
    case = Case(load([*GIVEN, "data.max_prompt_length=1024"], check=False).cfg, Shapes(shape))
    (finding,) = [each for each in find_all(case) if each.rule == "large_pictures"]
    pixels = int(finding.type.split("max_pixels=")[1].split()[0])
    assert shape.tower is not None and shape.tower.tokens(pixels) == 768
