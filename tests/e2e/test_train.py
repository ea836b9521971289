import hashlib
import json

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_verl_command_trains_to_the_end(whole_run):
    status, printed, folder = whole_run
    assert status == 0, printed
    assert "step 6/6" in printed and "Traceback" not in printed
    assert "validation at step 6" in printed
    metrics = lines(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2, 3, 4, 5, 6]
    assert metrics[-1]["data"]["actor/kl_loss"] > 0


def test_settings_without_effect_are_reported(whole_run):
    _, printed, _ = whole_run
    assert "actor_rollout_ref.ref.fsdp_config.param_offload" in printed


def test_the_reward_file_scored_with_its_settings(whole_run):
    _, _, folder = whole_run
    for row in lines(folder / "rollouts" / "1.jsonl"):
        assert row["score"] == pytest.approx(row["output"].count("3") / max(1, len(row["output"])))
        assert row["length"] == len(row["output"])


def test_the_folder_tells_what_was_asked(whole_run):
    _, _, folder = whole_run
    assert "kl_loss_coef: 0.001" in (folder / "config.yaml").read_text()
    assert "algorithm.adv_estimator=grpo" in (folder / "command.txt").read_text()
    assert (folder / "curves.png").stat().st_size > 1000


def test_checkpoints_are_whole(whole_run):
    _, _, folder = whole_run
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "6"
    manifest = json.loads((folder / "global_step_6" / "manifest.json").read_text())["files"]
    for name, fact in manifest.items():
        assert hashlib.sha256((folder / "global_step_6" / name).read_bytes()).hexdigest() == fact["sha256"]


@pytest.mark.long
def test_validating_a_trained_model_only(burnish, verl_command, whole_run, tmp_path):
    """The run goes on from the checkpoint, and says the same as it said at its last step."""
    _, _, folder = whole_run
    checkpoint = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder / 'global_step_6'}")
    status, printed = burnish(*verl_command(tmp_path / "val", "trainer.val_only=True", *checkpoint))
    assert status == 0, printed
    name = "val-core/sums/reward/mean@1"
    trained = lines(folder / "metrics.jsonl")[-1]["data"][name]
    assert lines(tmp_path / "val" / "metrics.jsonl")[-1]["data"][name] == trained


def test_a_hugging_face_folder_can_be_used_elsewhere(burnish, verl_command, files, tmp_path):
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=['hf_model']"
    status, printed = burnish(*verl_command(tmp_path / "run", "trainer.total_training_steps=1", contents))
    assert status == 0, printed
    hub = tmp_path / "run" / "global_step_1" / "actor" / "huggingface"
    trained, before = load_file(hub / "model.safetensors"), load_file(files / "model" / "model.safetensors")
    assert trained.keys() == before.keys()
    assert any(not trained[name].equal(before[name]) for name in trained)
    ids = AutoTokenizer.from_pretrained(hub)("1+1", return_tensors="pt")
    assert AutoModelForCausalLM.from_pretrained(hub).generate(**ids, max_new_tokens=3, do_sample=False).shape[1] > 3
