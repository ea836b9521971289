"""Whole runs over several processes: the same numbers as one, and state that any number of them can take up."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from burnish.demo.tiny import make_tokenizer
from burnish.distributed.processes import Processes
from burnish.loop.fit import _one_step

from ..reward_models import make_reward_model

TWO = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes")
FILE = ("trainer.logger=[file]", "trainer.save_freq=1")
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
)


def close(one: dict, other: dict) -> None:
    """The same numbers up to the rounding of sums over ranks."""
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert one[name] == pytest.approx(value, rel=2e-4, abs=2e-6), name


def compare(found, expected) -> None:
    assert [step for step, _ in found] == [step for step, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        close(ours, theirs)


def test_two_ranks_train_as_one_survive_a_kill_and_resume_as_one(launch, metric_lines, tmp_path, monkeypatch):
    """PPO with reference and critic, and engines on both ranks. A rank is killed in the second step, the run restarts
    from its last checkpoint by itself, and one process makes the third step."""
    expected = launch(*PPO, *FILE, "trainer.total_training_steps=3", out="alone")
    killed = []

    def kill_once(run, result):
        if run.step == 1 and not killed:
            starter = run.learner.policy.group.starter
            assert isinstance(starter, Processes)
            killed.append(starter.pid(run.learner.policy.group.names[1]))
            threading.Timer(0.05, os.kill, (killed[0], signal.SIGKILL)).start()
        _one_step(run, result)

    monkeypatch.setattr("burnish.loop.fit._one_step", kill_once)
    found = launch(*PPO, *FILE, *TWO, out="several")
    assert len(killed) == 1
    assert found.metrics["training/restarts"] == 1
    found = launch(*PPO, *FILE, "trainer.total_training_steps=3", out="several")
    assert found.step == expected.step == 3
    ours = [
        (step, {k: v for k, v in numbers.items() if k != "training/restarts"})
        for step, numbers in metric_lines(tmp_path / "several")
    ]
    compare(ours, metric_lines(tmp_path / "alone"))
    timeline = [json.loads(line) for line in (tmp_path / "several" / "timeline.jsonl").read_text().splitlines()]
    phases = {"gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights"}
    for line in timeline[:2]:
        assert set(line["processes"]) == {"trainer rank 0 of 2", "trainer rank 1 of 2"}
        for spans in line["processes"].values():
            assert phases <= {name for name, _, _ in spans}
            assert all(0 <= seconds < line["time"] - start + 1 for _, start, seconds in spans)
    assert "processes" not in timeline[2]  # made by one process
    shards = {path.name for path in (tmp_path / "several" / "global_step_1" / "actor").glob("*.safetensors")}
    assert shards == {f"shards-0000{rank}-000.safetensors" for rank in range(2)}


@pytest.mark.long
def test_an_engine_and_a_reward_model_on_devices_of_their_own(launch, metric_lines, tmp_path):
    scorer = make_reward_model(tmp_path / "scorer", make_tokenizer("0123456789+"))
    scored = ("reward_model.enable=true", f"reward_model.model.path={scorer}")
    separate = (
        "trainer.launcher=processes",
        "actor_rollout_ref.hybrid_engine=false",
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=1",
        "reward_model.enable_resource_pool=true",
        "reward_model.nnodes=1",
        "reward_model.n_gpus_per_node=1",
    )
    launch(*FILE, *scored, out="alone")
    launch(*FILE, *scored, *separate, "actor_rollout_ref.actor.checkpoint.async_save=true", out="separate")
    compare(metric_lines(tmp_path / "separate"), metric_lines(tmp_path / "alone"))
    assert (tmp_path / "separate" / "global_step_2" / "manifest.json").is_file()


@pytest.mark.long
def test_a_rank_that_hangs_is_named_and_the_run_starts_again(launch, tmp_path, monkeypatch, capfd):
    stopped = []

    def stop_once(run, result):
        if run.step == 1 and not stopped:
            stopped.append(run.learner.policy.group.starter.pid(run.learner.policy.group.names[1]))
            os.kill(stopped[0], signal.SIGSTOP)
        _one_step(run, result)

    monkeypatch.setattr("burnish.loop.fit._one_step", stop_once)
    found = launch(*FILE, *TWO, "trainer.hang_timeout=15", out="several")
    assert (len(stopped), found.step, found.metrics["training/restarts"]) == (1, 2, 1)
    told = (tmp_path / "several" / "hang_rank_0.txt").read_text()
    assert "trainer rank 1 of 2 does not respond" in told
    assert "trainer rank 0 of 2 runs " in told  # it waits for the other, and says where
    assert "File " in told


ROLLOUT = "actor_rollout_ref.rollout"


PAIRS = f"{ROLLOUT}.tensor_model_parallel_size=2"
FOUR = ("trainer.n_gpus_per_node=4", TWO[1])
APART = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=2", TWO[1])
MEGATRON = "actor_rollout_ref.actor.strategy=megatron"
SIZES = "actor_rollout_ref.actor.megatron"


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(TWO, id="one engine"),
        *(
            pytest.param(layout, marks=pytest.mark.long, id=name)
            for name, layout in {
                "two engines": FOUR,
                "an engine apart": APART,
                "tensor ranks": (*TWO, MEGATRON, f"{SIZES}.tensor_model_parallel_size=2"),
                "stages": (*FOUR, MEGATRON, f"{SIZES}.pipeline_model_parallel_size=2"),
            }.items()
        ),
    ],
)
def test_engines_of_two_ranks_train_as_one_process(layout, launch, metric_lines, tmp_path):
    """GRPO; every rank verifies the part of the weights that it holds."""
    launch(*FILE, out="alone")
    launch(*FILE, *layout, PAIRS, out="tensor")
    compare(metric_lines(tmp_path / "tensor"), metric_lines(tmp_path / "alone"))


@pytest.mark.long
def test_a_run_survives_the_loss_of_a_rank_of_its_engine(launch, metric_lines, tmp_path, monkeypatch):
    """The second rank follows the first: without it, nothing can be generated until the run has restarted."""
    launch(*FILE, out="alone")
    killed = []

    def kill_once(run, result):
        assert list(run.rollout.engine.ranks) == [0]
        if run.step == 1 and not killed:
            starter = run.learner.policy.group.starter
            killed.append(starter.pid(run.learner.policy.group.names[1]))
            os.kill(killed[0], signal.SIGKILL)
        _one_step(run, result)

    monkeypatch.setattr("burnish.loop.fit._one_step", kill_once)
    found = launch(*FILE, *TWO, PAIRS, out="tensor")
    assert (len(killed), found.metrics["training/restarts"]) == (1, 1)
    lines = [
        (step, {name: value for name, value in numbers.items() if name != "training/restarts"})
        for step, numbers in metric_lines(tmp_path / "tensor")
    ]
    compare(lines, metric_lines(tmp_path / "alone"))
