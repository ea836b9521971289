"""burnish explain on the command line."""

import argparse
import json
import subprocess
import sys

import pytest

from burnish.cli.explain import add_parser
from burnish.cli.pipes import quiet_broken_pipe
from burnish.config.explain import describe_all
from burnish.config.jobs import JOBS
from burnish.config.status import idle_reasons
from burnish.config.tree import tree
from burnish.errors import ExitStatus


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


def test_several_keys(explain, pending_key):
    status, out, _ = explain("algorithm.adv_estimator", "trainer.n_gpus_per_node", pending_key)
    assert status == 0
    assert "generalized advantage estimation" in out
    assert "in verl: 8" in out
    assert "status: acts" in out
    assert "pending: not supported yet (MoE options)" in out


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


def test_pending(explain, pending_key):
    status, out, _ = explain("--pending")
    assert status == 0
    assert f"{pending_key}: not supported yet (MoE options)" in out
    assert "trtllm" not in out
    assert len(json.loads(explain("--pending", "--json")[1])) == len(out.splitlines())


def test_a_refused_value_has_its_reason(explain):
    assert "not supported: trtllm: Burnish has no engine" in explain("actor_rollout_ref.rollout.name")[1]
    _, out, _ = explain("actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    assert "status: refused: it replaces verl's manager" in out


def test_without_keys_lists_the_sections(explain):
    status, out, _ = explain()
    assert status == 0
    assert any(line.startswith("actor_rollout_ref.rollout.val_kwargs ") for line in out.splitlines())


TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def test_a_conditional_key_names_its_conditions(explain):
    """Without a config it is not said to act; with one, the status is that of the run."""
    _, out, _ = explain(TENSOR_PARALLEL)
    assert "status: acts in some runs" in out and "whole hf engine" in " ".join(out.split())
    (row,) = json.loads(explain(TENSOR_PARALLEL, "--json")[1])
    assert row["status"] == "conditional" and row["no_effect_if"]
    vllm, hf = "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.name=hf"
    one, several = "trainer.n_gpus_per_node=1", "trainer.n_gpus_per_node=8"
    statuses = {
        words: json.loads(explain(TENSOR_PARALLEL, *words, "--json")[1])[0]["status"]
        for words in ((vllm, one), (vllm, several), (hf, several), (several,), (one,))
    }
    acting = {(vllm, one): "acts", (vllm, several): "acts", (several,): "acts"}
    assert statuses == acting | {(hf, several): "inert", (one,): "inert"}
    (row,) = json.loads(explain("actor_rollout_ref.rollout.data_parallel_size", several, "--json")[1])
    assert row["status"] == "inert" and "tensor ranks" in row["why"]


def test_no_key_acts_where_a_run_reports_no_effect():
    """For every key: a plain "acts" means that no run reports it as without effect."""
    for job in JOBS:
        for row in describe_all(job=job):
            assert (row.status == "conditional") == bool(row.no_effect_if)
            assert row.status != "acts" or not idle_reasons(row.key, job)


def test_the_end_of_a_key_lists_every_key(explain):
    status, out, _ = explain("lr", "--json")
    assert status == 0
    assert {"actor_rollout_ref.actor.optim.lr", "critic.optim.lr", "optim.lr"} <= {
        row["key"] for row in json.loads(out)
    }
    assert [row["key"] for row in json.loads(explain("actor.optim.lr", "--json")[1])] == [
        "actor_rollout_ref.actor.optim.lr"
    ]


def test_lines_fit_80_columns(explain, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (("actor_rollout_ref.rollout",), ()):
        long = [line for line in explain(*words)[1].splitlines() if len(line) > 80 and len(line.split()) > 1]
        assert long == []


def test_json_without_keys_lists_all_keys(explain):
    status, output = explain("--json")[:2]
    rows = json.loads(output)
    assert status == 0 and {row["key"] for row in rows} == set(tree("train").leaves)


@pytest.mark.parametrize("words", ["explain --json", "explain", "--help"])
def test_a_closed_pipe_is_quiet(words):
    """`burnish explain --json | head` prints no traceback, also where the output waits in a buffer."""
    command = f"{sys.executable} -m burnish.cli.main {words} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_has_one_status_also_where_rich_notices_it():
    def rich_console(argv):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1) from None

    assert quiet_broken_pipe(rich_console)() == ExitStatus.BROKEN_PIPE
    with pytest.raises(SystemExit):
        quiet_broken_pipe(lambda argv: sys.exit(1))()
