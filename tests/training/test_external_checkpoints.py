"""Checkpoints of verl and OpenRLHF: what is in them, and how to convert what cannot be read."""

import pytest

from burnish.errors import UserError
from burnish.training.external_checkpoints import find_external_checkpoint

KEY = "trainer.resume_from_path"


def hub(folder, weights="model.safetensors"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / weights).write_bytes(b"x")
    return folder


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_verl_with_hugging_face_weights_for_both_roles(tmp_path):
    step = tmp_path / "global_step_10"
    hub(step / "actor" / "huggingface", "model-00001-of-00002.safetensors")
    hub(step / "critic" / "huggingface")
    found = find_external_checkpoint(step, key=KEY)
    assert (found.system, found.actor, found.critic) == ("verl", step / "actor", step / "critic")


def test_a_critic_without_weights_is_none(tmp_path):
    step = tmp_path / "global_step_10"
    hub(step / "actor" / "huggingface")
    hub(step / "critic" / "huggingface", weights=None)
    assert find_external_checkpoint(step, key=KEY).critic is None


def test_the_actors_folder_itself(tmp_path):
    actor = tmp_path / "global_step_10" / "actor"
    hub(actor / "huggingface")
    assert find_external_checkpoint(actor, key=KEY).actor == actor


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_hugging_face_folder_as_openrlhf_writes_it(tmp_path, weights):
    folder = hub(tmp_path / "global_step10_hf", weights)
    found = find_external_checkpoint(folder, key=KEY)
    assert (found.system, found.actor, found.critic) == ("Hugging Face", folder, None)


def conversion(folder):
    with pytest.raises(UserError) as caught:
        find_external_checkpoint(folder, key=KEY)
    assert caught.value.key == KEY and caught.value.value == str(folder)
    return caught.value.problem, caught.value.hint


def test_fsdp_shards_are_exported_first(tmp_path):
    step = tmp_path / "global_step_10"
    hub(step / "actor" / "huggingface", weights=None)
    touch(step / "actor" / "model_world_size_2_rank_0.pt", step / "actor" / "optim_world_size_2_rank_0.pt")
    problem, hint = conversion(step)
    assert "verl checkpoint without Hugging Face weights" in problem
    assert hint == f"burnish export {step} NEW_FOLDER, then trainer.resume_from_path=NEW_FOLDER"


def test_megatron_shards_need_verls_merger(tmp_path):
    step = tmp_path / "global_step_10"
    touch(step / "actor" / "dist_ckpt" / "common.pt")
    assert "verl.model_merger merge --backend megatron" in conversion(step)[1]


@pytest.mark.parametrize("given", ["", "_actor", "_actor/global_step10"], ids=["run", "_actor", "step"])
def test_deepspeed_states_name_the_weights_beside_them_or_the_script(tmp_path, given):
    touch(tmp_path / "_actor" / "global_step10" / "mp_rank_00_model_states.pt")
    (tmp_path / "_actor" / "latest").write_text("global_step10\n")
    folder = tmp_path / given
    problem, hint = conversion(folder)
    assert "DeepSpeed checkpoint of OpenRLHF without Hugging Face weights" in problem
    assert f"zero_to_fp32.py {tmp_path / '_actor'} NEW_FOLDER --tag global_step10" in hint
    beside = hub(tmp_path / "global_step10_hf")
    assert conversion(folder)[1] == f"trainer.resume_from_path={beside}"


def test_megatrons_own_checkpoints_are_named(tmp_path):
    touch(tmp_path / "iter_0000010" / "mp_rank_00" / "model_optim_rng.pt")
    assert "a checkpoint of Megatron" in conversion(tmp_path / "iter_0000010")[0]


@pytest.mark.parametrize("name", ["manifest.json", "trainer.json"])
def test_our_checkpoints_are_not_external(tmp_path, name):
    step = tmp_path / "global_step_10"
    hub(step / "actor" / "huggingface")
    touch(step / name)
    assert find_external_checkpoint(step, key=KEY) is None


def test_an_empty_folder_or_none_is_nothing(tmp_path):
    assert find_external_checkpoint(tmp_path, key=KEY) is None
    assert find_external_checkpoint(tmp_path / "nowhere", key=KEY) is None
