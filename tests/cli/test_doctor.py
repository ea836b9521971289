"""burnish doctor: text sections or one JSON object for a command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from burnish.cli import doctor
from burnish.data.files import write_parquet

VERL = ["python3", "-m", "verl.trainer.main_ppo"]
SMALL = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
]


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers(dest="command"))
    return doctor.run(parser.parse_args(["doctor", *words]))


def as_json(capsys, *words: str) -> tuple[int, dict]:
    status = run("--json", *words)
    return status, json.loads(capsys.readouterr().out)


def rules(output: dict) -> set[str]:
    return {finding["rule"] for finding in output["findings"]}


def test_machine_only(capsys):
    status, output = as_json(capsys)
    assert status == 0
    assert output["machine"]["libraries"]["torch"]
    assert output["understood"] is output["memory"] is None
    assert run() == 0
    assert "This machine" in capsys.readouterr().out


def test_a_model_with_images_gets_vllm_in_process_and_no_advice_about_verls_defaults(capsys):
    words = [*VERL, "--config-name=ppo_megatron_trainer.yaml", *SMALL[:1], "actor_rollout_ref.rollout.name=vllm"]
    words += ["actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct", "trainer.n_gpus_per_node=8"]
    words += ["data.train_files=t.parquet", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"]
    words += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]
    status, output = as_json(capsys, "--no-files", "--", *words)
    assert status == 0 and "vllm_in_process" in rules(output) and "unused_critic" not in rules(output)
    parts = output["memory"]["phases"][0]["parts"]
    weights = {part["role"]: part["bytes"] for part in parts if part["part"] == "weights"}
    assert weights["engine"] > 15e9  # all of them, on every device
    assert "unused_critic" in rules(as_json(capsys, "--no-files", "--", *words, "critic.optim.lr=1e-5")[1])
    text = ["data.image_key=null", "data.video_key=null"]
    assert "vllm_in_process" not in rules(as_json(capsys, "--no-files", "--", *words, *text)[1])


def test_command_that_fits(capsys, tmp_path):
    row = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "2"},
    }
    write_parquet([row] * 2050, tmp_path / "t.parquet")
    data = [f"data.train_files={tmp_path}/t.parquet", f"data.val_files={tmp_path}/t.parquet"]
    status, output = as_json(capsys, "--gpu-memory", "80", "--", *VERL, *SMALL, *data)
    assert (status, output["memory"]["fits"]) == (0, True)
    assert output["understood"]["dialect"] == "verl"
    assert output["arithmetic"]["responses_per_step"] == 8192
    assert output["arithmetic"]["steps_per_epoch"] == 2
    assert output["memory"]["phases"][0]["phase"] == "rollout"
    assert output["memory"]["shapes"]["policy"] == "the built-in shape of qwen2.5-0.5b"


def test_out_of_memory_gives_status_three_and_fixes(capsys):
    status, output = as_json(capsys, "--gpu-memory", "8", "--no-files", "--", *VERL, *SMALL)
    assert (status, output["memory"]["fits"]) == (3, False)
    assert output["memory"]["cures"]


def test_gpu_memory_option(capsys):
    assert as_json(capsys, "--gpu-memory", "80", "--no-files", "--", *VERL, *SMALL)[0] == 0


def test_double_kl_is_refused_once(capsys):
    double = ["actor_rollout_ref.actor.use_kl_loss=True", "algorithm.use_kl_in_reward=True"]
    status, output = as_json(capsys, "--no-files", "--", *VERL, *SMALL, *double)
    assert status == 3
    refused = [finding for finding in output["findings"] if finding["severity"] == "refused"]
    assert [finding["rule"] for finding in refused] == ["double_kl"]
    assert "algorithm.use_kl_in_reward=false" in refused[0]["type"]


def test_broken_rules_are_refused(capsys):
    status, output = as_json(
        capsys, "--no-files", "--", *VERL, *SMALL, "actor_rollout_ref.actor.ppo_mini_batch_size=4096"
    )
    assert status == 3
    assert "refused_setting" in rules(output)


def test_shape_option(capsys):
    own = [word.replace("Qwen/Qwen2.5-0.5B-Instruct", "my/model") for word in SMALL]
    _, output = as_json(capsys, "--no-files", "--", *VERL, *own)
    assert output["memory"] is None and "shape" in rules(output)
    _, output = as_json(capsys, "--no-files", "--shape", "qwen2.5-0.5b", "--", *VERL, *own)
    assert output["memory"]["fits"] is not None


def test_openrlhf_findings_use_its_flags(capsys):
    command = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "Qwen/Qwen2.5-0.5B"]
    command += ["--prompt_data", "no/data", "--remote_rm_url", "my_reward.py", "--actor_learning_rate", "1e-3"]
    _, output = as_json(capsys, "--", *command)
    assert output["understood"]["dialect"] == "openrlhf"
    (finding,) = [finding for finding in output["findings"] if finding["rule"] == "high_learning_rate"]
    assert "--actor_learning_rate" in finding["text"]


def test_yaml_file(capsys, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: 1}}\n")
    _, output = as_json(capsys, "--no-files", str(file))
    assert "group_of_one" in rules(output)


def test_script_is_recorded_not_run(capsys, tmp_path):
    script, left = tmp_path / "run.sh", tmp_path / "left"
    script.write_text(
        f"touch {left}\npip install x\n{' '.join(VERL)} {' '.join(SMALL)} trainer.save_freq=${{FREQ:-7}}\n"
    )
    status, output = as_json(capsys, "--gpu-memory", "80", "--no-files", str(script))
    assert status == 0
    assert output["understood"]["job"] == "train"
    assert "nothing_saved" not in rules(output)
    assert not left.exists()


@pytest.mark.parametrize(("family", "expected"), [("qwen2_5_vl", 0), ("gemma3", 0), ("internvl", 3), ("llava", 3)])
def test_a_local_vision_model_is_recognized_by_its_config(capsys, tmp_path, family, expected):
    """By its config.json, whatever its name is."""
    text = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "model_type": "qwen2",
    }
    config = {"model_type": family, "text_config": text, "vision_config": {"depth": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [*VERL, *SMALL, f"actor_rollout_ref.model.path={tmp_path}"]
    status, output = as_json(capsys, "--gpu-memory", "80", "--no-files", "--", *words)
    assert status == expected and ("family" in rules(output)) is (expected == 3)
    assert any(family in finding["text"] for finding in output["findings"]) is (expected == 3)


def test_every_command_of_a_script_counts(capsys, tmp_path, pending_key):
    """The report covers the first training; that another command does not start is said, and the status shows it."""
    script = tmp_path / "run.sh"
    script.write_text(f"{' '.join(VERL)} {' '.join(SMALL)}\n{' '.join(VERL)} {' '.join(SMALL)} {pending_key}=5\n")
    status, output = as_json(capsys, "--gpu-memory", "80", "--no-files", str(script))
    assert status == 4 and output["understood"]["pending"] == 0
    assert any("command 2" in note and f"{pending_key}=5" in note for note in output["notes"])


def test_shape_from_a_model_library_entry(capsys, tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "defaults: [{model: qwen25_7b}]\nmegatron_training: {model: qwen25_7b, stage: ray_grpo, global_batch_size: 8}\n"
        "actor_config: {model: qwen25_7b}\nrl_config: {n_samples_per_prompt: 8}\ngenerate_config: {}\n"
    )
    _, output = as_json(capsys, "--no-files", str(file))
    assert output["understood"]["dialect"] == "mindspeed"
    assert output["memory"]["shapes"]["policy"] == "the built-in shape of qwen2.5-7b"


@pytest.mark.parametrize("words", [["ls", "-l"], ["python3", "-m", "http.server"], ["no_such_file.sh"]])
def test_untranslatable_input_gives_status_two(capsys, words):
    status, output = as_json(capsys, "--", *words)
    assert status == 2
    assert output["error"]


def test_text_output_has_all_sections(capsys):
    status = run("--gpu-memory", "8", "--no-files", "--", *VERL, *SMALL)
    page = capsys.readouterr().out
    assert status == 3
    for title in (
        "Command: verl, translated to `burnish train`",
        "Batch arithmetic",
        "Memory of one GPU (8 GiB)",
        "Findings",
    ):
        assert title in page
    assert "Fixes, cheapest first" in page


def test_translation_does_not_import_torch():
    code = (
        "import sys, argparse; from burnish.cli import doctor\n"
        "p = argparse.ArgumentParser(); doctor.add_parser(p.add_subparsers(dest='c'))\n"
        f"doctor.run(p.parse_args(['doctor', '--json', '--no-files', '--', *{[*VERL, *SMALL]!r}]))\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1] == "False"
