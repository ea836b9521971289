"""Commands with images, as verl's, OpenRLHF's and MindSpeed's users write them."""

from __future__ import annotations

import pytest

from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, load_errors
from burnish.dialects.translate import translate_command

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GEO3K = (
    "data.train_files=geo3k/train.parquet",
    "data.image_key=images",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct",
)
OPENRLHF = "--pretrain Qwen/Qwen2.5-VL-3B-Instruct --prompt_data geo3k --remote_rm_url r.py"


def verl(*words: str):
    return translate_command(["python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", *GEO3K, *words])


def statuses(translation, *names: str) -> list[str]:
    found = {item.theirs.lstrip("+"): item.status for item in translation.items}
    return [found[name] for name in names]


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ((f"{ACTOR}.freeze_vision_tower=True",), f"{ACTOR}.freeze_vision_tower", True),  # 0.6 and later
        ((f"+{ROLLOUT}.limit_images=5",), "data.max_images_per_prompt", 5),  # undeclared until 0.5
        (("data.video_key=clips",), "data.video_key", "clips"),
        (("data.video_key=null",), "data.video_key", None),
        (("+data.mm_processor_kwargs.max_pixels=200704",), "data.mm_processor_kwargs.max_pixels", 200704),  # 0.9
        (("actor_rollout_ref.model.exclude_modules='.*visual.*'",), "actor_rollout_ref.model.exclude_modules", None),
    ],
)
def test_verls_keys_are_accepted(words, key, value):
    translation = verl(*words)
    assert translation.run_status == 0 and key in translation.settings
    assert value is None or translation.settings[key] == value
    assert load_errors(translation) == []


@pytest.mark.parametrize("plus", ["", "+"])
def test_arguments_of_vllms_processor_cache_reach_it(plus):
    """Declared until 0.5, and typed with a plus since."""
    key = f"{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache"
    translation = verl(f"{plus}{key}=True", f"{ROLLOUT}.name=vllm")
    assert translation.settings[key] is True and translation.run_status == 0
    assert statuses(verl(f"{plus}{key}=True", f"{ROLLOUT}.name=hf"), key) == [INERT]


def test_what_only_verls_loader_does_is_inert():
    names = ("data.image_patch_size", "data.return_multi_modal_inputs")
    translation = verl("data.image_patch_size=16", "data.return_multi_modal_inputs=False")
    assert statuses(translation, *names) == [INERT, INERT]
    assert translation.run_status == 0


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("data.audio_key=audios", "audio"),
        ("actor_rollout_ref.model.lora.freeze_vision_model=False", "frozen"),
        ("critic.model.path=OpenGVLab/InternVL3-8B", "InternVL"),
    ],
)
def test_what_does_not_exist_is_refused(word, why):
    translation = verl(word, "critic.enable=True")
    refused = [item for item in translation.items if item.status == REFUSED]
    assert [item.theirs for item in refused] == [word.partition("=")[0]] and why in refused[0].why


def test_vlm_lora_is_lora():
    lora = "actor_rollout_ref.model.lora"
    translation = verl(f"{lora}.rank=16", f"{lora}.type=vlm_lora", f"{lora}.freeze_vision_model=True")
    assert translation.run_status == 0 and translation.settings[f"{lora}.type"] == "vlm_lora"


def openrlhf(flags: str):
    return translate_command(["python3", "-m", "openrlhf.cli.train_ppo_ray", *f"{OPENRLHF} {flags}".split()])


@pytest.mark.parametrize(
    "flags",
    [
        "--image_key pictures --max_images_per_prompt 2 --freeze_visual_encoder --advantage_estimator group_norm"
        " --n_samples_per_prompt 4",
        "--data.image_key pictures --data.max_images_per_prompt 2 --actor.freeze_visual_encoder"
        " --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4",
    ],
)
def test_openrlhfs_flags_of_both_eras(flags):
    translation = openrlhf(flags)
    settings = translation.settings
    assert settings["data.image_key"] == "pictures" and settings["data.max_images_per_prompt"] == 2
    assert settings[f"{ACTOR}.freeze_vision_tower"] is True
    names = ("image_key", "max_images_per_prompt", "freeze_visual_encoder")
    found = [item.status for item in translation.items if item.theirs.rpartition(".")[2].lstrip("-") in names]
    assert found and set(found) <= {KEPT, CONVERTED}


def test_openrlhf_without_images_is_text():
    translation = openrlhf("--image_key pictures --advantage_estimator group_norm")
    assert "data.image_key" not in translation.settings
