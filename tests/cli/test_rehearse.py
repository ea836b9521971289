"""burnish rehearse: output and exit status."""

from __future__ import annotations

import argparse
import json

import pytest

from burnish.cli import rehearse

COMMAND = [
    *("--", "python3", "-m", "verl.trainer.main_ppo"),
    "algorithm.adv_estimator=grpo",
    "data.train_files=/there/gsm8k/train.parquet",
    "data.val_files=null",
    "data.train_batch_size=16",
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "trainer.n_gpus_per_node=2",
]


def call(*words):
    parser = argparse.ArgumentParser()
    rehearse.add_parser(parser.add_subparsers())
    return rehearse.run(parser.parse_args(["rehearse", *words]))


def test_json_output_is_one_object(capsys):
    status = call("--json", *COMMAND)
    output = json.loads(capsys.readouterr().out)
    assert status == 0, output["findings"]
    expected = {"dialect", "job", "steps", "passed", "seconds", "findings", "dropped", "scaled", "not_tested"}
    assert expected <= output.keys()
    assert (output["dialect"], output["job"], output["steps"], output["passed"]) == ("verl", "train", 1, True)


def test_failing_command_is_explained(capsys):
    assert call(*COMMAND, "actor_rollout_ref.actor.ppo_mini_batch_size=32") == 3
    out = capsys.readouterr().out
    assert out.startswith("refused: `burnish run` does not start") and "ppo_mini_batch_size=32" in out
    assert "not tested" in out and "the real weights" in out


def test_refused_setting(capsys):
    assert call("--json", *COMMAND, "algorithm.adv_estimatr=grpo") == 3
    output = json.loads(capsys.readouterr().out)
    assert not output["passed"] and any("adv_estimator" in line for line in output["refused"])


def test_untranslatable_command(capsys):
    assert call("--json", "--", "ls", "-l") == 2
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_zero_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        call("--steps", "0", *COMMAND)
    assert "must be at least 1" in capsys.readouterr().err
