"""burnish convert: YAML, table, JSON and exit status."""

import argparse
import json
import re

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
    assert list(output) == ["dialect", "job", "notes", "config", "report"]
    assert (output["dialect"], output["job"]) == ("verl", "train")
    assert output["config"]["actor_rollout_ref"]["rollout"]["n"] == 4
    row = next(row for row in output["report"] if row["theirs"] == N)
    assert row == {"theirs": N, "value": 4, "status": "kept", "ours": N, "ours_value": 4, "why": ""}


def test_the_summary_is_first_and_kept_rows_are_last(capsys, pending_key):
    extra = (
        "actor_rollout_ref.rollout.mode=async",
        f"{pending_key}=5",
        "actor_rollout_ref.actor.use_remove_padding=True",
    )
    assert run("--", *COMMAND, *extra) == 4
    text = capsys.readouterr().out
    assert text.startswith("verl command, translated to `burnish train`: 3 settings kept")
    titles = ("`burnish run` does not start", "not supported yet (1)", "without effect (1)", "--all also lists 3 kept")
    assert sorted(titles, key=text.index) == list(titles)
    assert "kept (" not in text and "verl's default" not in text
    run("--all", "--", *COMMAND, *extra)
    text = capsys.readouterr().out
    titles = ("not supported yet (1)", "kept (3)", "defaults that are set explicitly (")
    assert sorted(titles, key=text.index) == list(titles)
    assert f"{N}=4" in text and "verl's default" in text


def test_counts_agree(capsys, pending_key):
    """The numbers of the summary are the numbers of rows under each heading."""
    pending = f"{pending_key}=5"
    assert run("--all", "--", *COMMAND, "actor_rollout_ref.rollout.mode=async", pending, "data.no=1") == 3
    text = " ".join(capsys.readouterr().out.split())
    summary, _, rest = text.partition("`burnish run` does not start")
    for phrase, heading in (
        (r"(\d+) settings kept", "kept"),
        (r"(\d+) not supported yet", "not supported yet"),
        (r"(\d+) refused", "refused"),
        (r"(\d+) defaults of verl differ", "defaults that are set explicitly"),
    ):
        assert f" {heading} ({re.search(phrase, summary)[1]})" in rest


def test_nothing_wraps_at_80_columns(capsys, monkeypatch):
    """Keys are never broken; only a single long word may exceed the width."""
    monkeypatch.setenv("COLUMNS", "80")
    long_key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    path = "/a/very/long/path/" + "folder/" * 12 + "tools.yaml"
    keys = (f"{long_key}={path}", "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=bf16")
    run("--all", "--", *COMMAND, *keys)
    report = capsys.readouterr().out.partition("# burnish train")[0]
    assert [line for line in report.splitlines() if len(line) > 80 and len(line.split()) > 1] == []
    for key in (long_key, "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype"):
        assert f"  {key}=" in report


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
    monkeypatch.setattr("burnish.cli.scripts.record.record_script", lambda path, args, *, trust: recording)


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
