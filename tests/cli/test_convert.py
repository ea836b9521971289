"""burnish convert: the YAML, the table, the JSON and the exit status."""

import argparse
import json

import pytest
import yaml

from burnish.cli import convert
from burnish.cli.recording import Recorded, Recording
from burnish.config import load

N = "actor_rollout_ref.rollout.n"
COMMAND = ["python3", "-m", "verl.trainer.main_ppo", f"{N}=4", "trainer.n_gpus_per_node=1"]


def run(*words):
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(dest="command")
    convert.add_parser(subparsers)
    return convert.run(parser.parse_args(["convert", *words]))


def test_the_json_of_a_command(capsys):
    assert run("--json", "--", *COMMAND) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["dialect", "job", "config", "report"]
    assert (found["dialect"], found["job"]) == ("verl", "train")
    assert found["config"]["actor_rollout_ref"]["rollout"]["n"] == 4
    row = next(row for row in found["report"] if row["theirs"] == N)
    assert row == {"theirs": N, "value": 4, "status": "kept", "ours": N, "ours_value": 4, "why": ""}


def test_the_yaml_and_the_table(capsys):
    assert run("--", *COMMAND, "actor_rollout_ref.rollout.mode=async") == 0
    text = capsys.readouterr().out
    assert f"{N}=4" in text
    assert "kept (3)" in text
    assert "defaults of verl that differ from ours are written out; --all lists them." in text
    assert "verl's default" not in text
    run("--all", "--", *COMMAND)
    assert "verl's default" in capsys.readouterr().out


def test_the_yaml_alone_is_a_config_of_burnish(capsys, tmp_path):
    assert run("--yaml", "--", *COMMAND) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    cfg = load(config_path=str(tmp_path), config_name="run", check=False).cfg
    assert (cfg.actor_rollout_ref.rollout.n, cfg.actor_rollout_ref.rollout.name) == (4, "vllm")


def test_a_yaml_file(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data:\n  max_prompt_length: 9\n")
    assert run("--json", str(path), "trainer.total_epochs=2") == 0
    assert json.loads(capsys.readouterr().out)["config"] == {
        "data": {"max_prompt_length": 9},
        "trainer": {"total_epochs": 2},
    }


def test_something_refused_is_exit_status_3(capsys):
    assert run("--json", "--", *COMMAND, "algorithm.adv_estimater=grpo") == 3
    (row,) = [row for row in json.loads(capsys.readouterr().out)["report"] if row["status"] == "refused"]
    assert "Did you mean algorithm.adv_estimator?" in row["why"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--"],
        ["--", "ls", "-l"],
        ["--", "python3", "-m", "my.program"],
        ["no_such.sh"],
        ["no_such.yaml"],
        ["--json", "--", "nvidia-smi"],
    ],
    ids=" ".join,
)
def test_what_nobody_reads_is_exit_status_2(words, capsys):
    assert run(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err


def test_dashes_inside_the_command_are_its_own(capsys):
    words = ["ray", "job", "submit", "--no-wait", "--", *COMMAND]
    assert run("--json", "--", *words) == 0
    assert json.loads(capsys.readouterr().out)["config"]["actor_rollout_ref"]["rollout"]["n"] == 4


def record(monkeypatch, *commands, notes=()):
    recording = Recording([Recorded(tuple(words), {"WANDB_API_KEY": "geheim"}) for words in commands], notes)
    monkeypatch.setattr("burnish.cli.recording.record_script", lambda path, args: recording)


def test_a_script_with_one_launch_is_that_command(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    record(monkeypatch, ["mkdir", "x"], COMMAND)
    assert run("--json", str(script)) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["job"] == "train"
    assert "geheim" not in text


def test_a_script_with_several_launches_is_a_list(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    refused = ["python3", "-m", "verl.trainer.main_eval", "data.pth=x"]
    record(monkeypatch, COMMAND, refused, notes=["a loop was cut"])
    assert run("--json", str(script)) == 3
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["commands"]] == ["train", "eval"]
    run("--yaml", str(script))
    assert "a loop was cut" in capsys.readouterr().err


def test_a_script_without_a_launch_cannot_be_read(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    record(monkeypatch, ["mkdir", "x"])
    assert run(str(script)) == 2
    assert "it starts: mkdir" in capsys.readouterr().err


def test_a_real_script_is_recorded(capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f'set -x\nN=3\npython3 -m verl.trainer.main_ppo {N}=$N \\\n  trainer.n_gpus_per_node=1 "$@"\n')
    assert run("--yaml", str(script), "trainer.total_epochs=2") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["actor_rollout_ref"]["rollout"]["n"] == 3
    assert config["trainer"]["total_epochs"] == 2
