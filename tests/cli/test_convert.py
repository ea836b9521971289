"""burnish convert: YAML, table, JSON and exit status."""

import argparse
import json

import pytest
import yaml

from burnish.cli import convert
from burnish.cli.scripts.record import RecordedCommand, Recording
from burnish.config import load

N = "actor_rollout_ref.rollout.n"
COMMAND = ["python3", "-m", "verl.trainer.main_ppo", f"{N}=4", "trainer.n_gpus_per_node=1"]


def run(*words):
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(dest="command")
    convert.add_parser(subparsers)
    return convert.run(parser.parse_args(["convert", *words]))


def test_json_of_a_command(capsys):
    assert run("--json", "--", *COMMAND) == 0
    output = json.loads(capsys.readouterr().out)
    assert list(output) == ["dialect", "job", "config", "report"]
    assert (output["dialect"], output["job"]) == ("verl", "train")
    assert output["config"]["actor_rollout_ref"]["rollout"]["n"] == 4
    row = next(row for row in output["report"] if row["theirs"] == N)
    assert row == {"theirs": N, "value": 4, "status": "kept", "ours": N, "ours_value": 4, "why": ""}


def test_yaml_and_table(capsys):
    assert run("--", *COMMAND, "actor_rollout_ref.rollout.mode=async") == 0
    text = capsys.readouterr().out
    assert f"{N}=4" in text
    assert "kept (3)" in text
    assert "defaults of verl differ from Burnish's and are set; --all lists them." in text
    assert "verl's default" not in text
    run("--all", "--", *COMMAND)
    assert "verl's default" in capsys.readouterr().out


def test_yaml_output_is_a_burnish_config(capsys, tmp_path):
    assert run("--yaml", "--", *COMMAND) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    cfg = load(config_path=str(tmp_path), config_name="run", check=False).cfg
    assert (cfg.actor_rollout_ref.rollout.n, cfg.actor_rollout_ref.rollout.name) == (4, "vllm")


def test_yaml_file(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data:\n  max_prompt_length: 9\n")
    assert run("--json", str(path), "trainer.total_epochs=2") == 0
    assert json.loads(capsys.readouterr().out)["config"] == {
        "data": {"max_prompt_length": 9},
        "trainer": {"total_epochs": 2},
    }


def test_refused_setting_gives_status_three(capsys):
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
def test_untranslatable_input_gives_status_two(words, capsys):
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


def test_dashes_belong_to_the_command(capsys):
    words = ["ray", "job", "submit", "--no-wait", "--", *COMMAND]
    assert run("--json", "--", *words) == 0
    assert json.loads(capsys.readouterr().out)["config"]["actor_rollout_ref"]["rollout"]["n"] == 4


def record(monkeypatch, *commands, notes=()):
    recording = Recording([RecordedCommand(tuple(words), {"WANDB_API_KEY": "secret"}) for words in commands], notes)
    monkeypatch.setattr("burnish.cli.scripts.record.record_script", lambda path, args: recording)


def test_script_with_one_launch(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    record(monkeypatch, ["mkdir", "x"], COMMAND)
    assert run("--json", str(script)) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["job"] == "train"
    assert "secret" not in text


def test_script_with_several_launches(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    refused = ["python3", "-m", "verl.trainer.main_eval", "data.pth=x"]
    record(monkeypatch, COMMAND, refused, notes=["a loop was cut"])
    assert run("--json", str(script)) == 3
    assert [command["job"] for command in json.loads(capsys.readouterr().out)["commands"]] == ["train", "eval"]
    run("--yaml", str(script))
    assert "a loop was cut" in capsys.readouterr().err


def test_script_without_launch_is_refused(capsys, monkeypatch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    record(monkeypatch, ["mkdir", "x"])
    assert run(str(script)) == 2
    assert "it starts: mkdir" in capsys.readouterr().err


def test_script_is_recorded(capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f'set -x\nN=3\npython3 -m verl.trainer.main_ppo {N}=$N \\\n  trainer.n_gpus_per_node=1 "$@"\n')
    assert run("--yaml", str(script), "trainer.total_epochs=2") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["actor_rollout_ref"]["rollout"]["n"] == 3
    assert config["trainer"]["total_epochs"] == 2
