"""burnish doctor: a command in, sections or one JSON object out."""

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


def rules(found: dict) -> set[str]:
    return {finding["rule"] for finding in found["findings"]}


def test_the_machine_alone(capsys):
    status, found = as_json(capsys)
    assert status == 0
    assert found["machine"]["libraries"]["torch"]
    assert found["understood"] is found["memory"] is None
    assert run() == 0
    assert "This machine" in capsys.readouterr().out


def test_a_command_that_fits(capsys, tmp_path):
    row = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "2"},
    }
    write_parquet([row] * 2050, tmp_path / "t.parquet")
    data = [f"data.train_files={tmp_path}/t.parquet", f"data.val_files={tmp_path}/t.parquet"]
    status, found = as_json(capsys, "--gpu-memory", "80", "--", *VERL, *SMALL, *data)
    assert (status, found["memory"]["fits"]) == (0, True)
    assert found["understood"]["dialect"] == "verl"
    assert found["arithmetic"]["responses_per_step"] == 8192
    assert found["arithmetic"]["steps_per_epoch"] == 2
    assert found["memory"]["phases"][0]["phase"] == "rollout"
    assert found["memory"]["shapes"]["policy"] == "the built-in shape of qwen2.5-0.5b"


def test_what_does_not_fit_is_3_and_has_cures(capsys):
    status, found = as_json(capsys, "--gpu-memory", "8", "--no-files", "--", *VERL, *SMALL)
    assert (status, found["memory"]["fits"]) == (3, False)
    assert found["memory"]["cures"]


def test_the_size_of_the_gpu_decides(capsys):
    assert as_json(capsys, "--gpu-memory", "80", "--no-files", "--", *VERL, *SMALL)[0] == 0


def test_a_double_kl_is_refused_once(capsys):
    double = ["actor_rollout_ref.actor.use_kl_loss=True", "algorithm.use_kl_in_reward=True"]
    status, found = as_json(capsys, "--no-files", "--", *VERL, *SMALL, *double)
    assert status == 3
    refused = [finding for finding in found["findings"] if finding["severity"] == "refused"]
    assert [finding["rule"] for finding in refused] == ["double_kl"]
    assert "algorithm.use_kl_in_reward=false" in refused[0]["type"]


def test_broken_rules_are_refused(capsys):
    status, found = as_json(
        capsys, "--no-files", "--", *VERL, *SMALL, "actor_rollout_ref.actor.ppo_mini_batch_size=4096"
    )
    assert status == 3
    assert "rule" in rules(found)


def test_another_shape_can_be_asked_for(capsys):
    own = [word.replace("Qwen/Qwen2.5-0.5B-Instruct", "my/model") for word in SMALL]
    _, found = as_json(capsys, "--no-files", "--", *VERL, *own)
    assert found["memory"] is None and "shape" in rules(found)
    _, found = as_json(capsys, "--no-files", "--shape", "qwen2.5-0.5b", "--", *VERL, *own)
    assert found["memory"]["fits"] is not None


def test_openrlhf_is_answered_in_its_own_words(capsys):
    command = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "Qwen/Qwen2.5-0.5B"]
    command += ["--prompt_data", "no/data", "--remote_rm_url", "my_reward.py", "--actor_learning_rate", "1e-3"]
    _, found = as_json(capsys, "--", *command)
    assert found["understood"]["dialect"] == "openrlhf"
    (finding,) = [finding for finding in found["findings"] if finding["rule"] == "high_learning_rate"]
    assert "--actor_learning_rate" in finding["text"]


def test_a_yaml(capsys, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: 1}}\n")
    _, found = as_json(capsys, "--no-files", str(file))
    assert "group_of_one" in rules(found)


def test_a_script_is_recorded_and_never_run(capsys, tmp_path):
    script, left = tmp_path / "run.sh", tmp_path / "left"
    script.write_text(
        f"touch {left}\npip install x\n{' '.join(VERL)} {' '.join(SMALL)} trainer.save_freq=${{FREQ:-7}}\n"
    )
    status, found = as_json(capsys, "--gpu-memory", "80", "--no-files", str(script))
    assert status == 0
    assert found["understood"]["job"] == "train"
    assert "nothing_saved" not in rules(found)
    assert not left.exists()


def test_an_entry_of_a_model_library_is_a_shape(capsys, tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "defaults: [{model: qwen25_7b}]\nmegatron_training: {model: qwen25_7b, stage: ray_grpo, global_batch_size: 8}\n"
        "actor_config: {model: qwen25_7b}\nrl_config: {n_samples_per_prompt: 8}\ngenerate_config: {}\n"
    )
    _, found = as_json(capsys, "--no-files", str(file))
    assert found["understood"]["dialect"] == "mindspeed"
    assert found["memory"]["shapes"]["policy"] == "the built-in shape of qwen2.5-7b"


@pytest.mark.parametrize("words", [["ls", "-l"], ["python3", "-m", "http.server"], ["no_such_file.sh"]])
def test_what_cannot_be_read_is_2(capsys, words):
    status, found = as_json(capsys, "--", *words)
    assert status == 2
    assert found["error"]


def test_the_page_has_its_sections(capsys):
    status = run("--gpu-memory", "8", "--no-files", "--", *VERL, *SMALL)
    page = capsys.readouterr().out
    assert status == 3
    for title in ("Understood: a verl command", "Batch arithmetic", "Memory of one GPU (8 GiB)", "Findings"):
        assert title in page
    assert "What to type, cheapest first" in page


def test_reading_a_command_loads_no_torch():
    code = (
        "import sys, argparse; from burnish.cli import doctor\n"
        "p = argparse.ArgumentParser(); doctor.add_parser(p.add_subparsers(dest='c'))\n"
        f"doctor.run(p.parse_args(['doctor', '--json', '--no-files', '--', *{[*VERL, *SMALL]!r}]))\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1] == "False"
