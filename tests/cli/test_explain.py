"""burnish explain on the command line."""

import argparse
import json

import pytest

from burnish.cli.explain import add_parser


@pytest.fixture
def explain(capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())

    def run(*words):
        args = parser.parse_args(["explain", *words])
        status = args.run(args)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_several_keys(explain):
    status, out, _ = explain("algorithm.adv_estimator", "trainer.n_gpus_per_node", "trainer.profile_steps")
    assert status == 0
    assert "generalized advantage estimation" in out
    assert "in verl: 8" in out
    assert "status: acts" in out
    assert "pending: not supported yet (profiling)" in out


def test_chinese(explain):
    status, out, _ = explain("data.shuffle", "--lang", "zh")
    assert status == 0
    assert "类型: bool" in out
    assert "状态: 生效" in out


def test_json(explain):
    status, out, _ = explain("data.shuffle", "algorithm.kl_ctrl", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["key"] for row in rows][:2] == ["data.shuffle", "algorithm.kl_ctrl.type"]
    assert rows[0]["default"] is True


def test_unknown_key_does_not_hide_the_others(explain):
    status, out, err = explain("data.shufle", "trainer.seed")
    assert status == 2
    assert "data.shuffle" in err
    assert "trainer.seed" in out


def test_keys_of_other_jobs(explain):
    status, out, _ = explain("data.max_length")
    assert status == 0
    assert "[sft]" in out
    assert explain("data.max_length", "--job", "train")[0] == 2


def test_pending(explain):
    status, out, _ = explain("--pending")
    assert status == 0
    assert "actor_rollout_ref.rollout.name=trtllm: not supported yet (external engines)" in out
    assert len(json.loads(explain("--pending", "--json")[1])) == len(out.splitlines())


def test_without_keys_lists_the_sections(explain):
    status, out, _ = explain()
    assert status == 0
    assert any(line.startswith("actor_rollout_ref.rollout.val_kwargs ") for line in out.splitlines())
