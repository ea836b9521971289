"""burnish rehearse: what it prints, and its exit status."""

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


def test_json_is_one_object(capsys):
    status = call("--json", *COMMAND)
    found = json.loads(capsys.readouterr().out)
    assert status == 0, found["findings"]
    wanted = {"dialect", "job", "steps", "passed", "seconds", "findings", "dropped", "scaled", "not_tested"}
    assert wanted <= found.keys()
    assert (found["dialect"], found["job"], found["steps"], found["passed"]) == ("verl", "train", 1, True)


def test_a_broken_command_is_told_in_words(capsys):
    assert call(*COMMAND, "actor_rollout_ref.actor.ppo_mini_batch_size=32") == 1
    out = capsys.readouterr().out
    assert "would break the real run" in out and "ppo_mini_batch_size=32" in out
    assert "not tested" in out and "the real weights" in out


def test_a_refused_setting(capsys):
    assert call("--json", *COMMAND, "algorithm.adv_estimatr=grpo") == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"] and any("adv_estimator" in line for line in found["refused"])


def test_what_nobody_reads(capsys):
    assert call("--json", "--", "ls", "-l") == 2
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_no_steps_are_no_rehearsal(capsys):
    with pytest.raises(SystemExit):
        call("--steps", "0", *COMMAND)
    assert "at least one step" in capsys.readouterr().err
