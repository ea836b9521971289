"""A run whose engine is a server."""

import os
import signal
import threading
import time

import pytest

from burnish.config import load
from burnish.log.file import read_metrics
from burnish.loop.api import start
from burnish.loop.build import build
from burnish.loop.fit import fit
from burnish.rollout.engines.supervised import Supervised

from .kit import KWARGS, PATIENCE, SECTION


def training(folder, tmp_path, *overrides):
    """Two steps of a tiny task; the run and what it has logged."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number}+1"}],
            "data_source": "sums",
            "reward_model": {"ground_truth": str(number)},
        }
        for number in range(8)
    ]
    loaded = load(
        [
            f"actor_rollout_ref.model.path={folder}",
            "actor_rollout_ref.rollout.name=sglang",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=1e-2",
            "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
            "data.train_batch_size=4",
            "data.max_prompt_length=16",
            "data.max_response_length=60",
            "algorithm.adv_estimator=grpo",
            "reward.num_workers=0",
            "trainer.total_training_steps=2",
            "trainer.device=cpu",
            "trainer.logger=[file]",
            "trainer.resume_mode=disable",
            f"trainer.default_local_dir={tmp_path}",
            *overrides,
        ],
        given=["data.train_files"],
    )

    def ones(data_source, solution_str, ground_truth, extra_info=None):
        return solution_str.count("1")

    return build(loaded.cfg, ones, rows), loaded


def trained(run, loaded):
    start(run, loaded)
    try:
        fit(run)
    finally:
        run.close()
    return read_metrics(run.recorder.folder.metrics)


def test_training_with_a_server(tiny_folder, sglang_server, tmp_path):
    """The server's log-probs are the trainer's, before and after new weights."""
    run, loaded = training(tiny_folder, tmp_path, f"{KWARGS}.base_url={sglang_server.url}")
    assert isinstance(run.rollout.engine, Supervised)
    metrics = trained(run, loaded)
    for step in (1, 2):
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-4
        assert metrics[step]["actor/grad_norm"] > 0
    assert run.rollout.version == 3  # at the start and after each step


@pytest.mark.long
def test_training_continues_when_its_server_is_killed(standin, tiny_folder, tmp_path):
    """Twice the same run; in the second the server is killed while it generates. The numbers are the same."""
    calm = trained(*training(tiny_folder, tmp_path / "calm", f"{SECTION}.invariant=true"))
    told = f"{SECTION}.disable_log_stats=false"
    run, loaded = training(tiny_folder, tmp_path / "stirred", f"{SECTION}.invariant=true", told)
    dead = []

    def kill():
        while not dead:
            engine = run.rollout.engine._engine
            if run.step == 1 and engine._calls:
                os.killpg(engine._server.process.pid, signal.SIGKILL)
                dead.append(engine)
            time.sleep(0.002)

    killer = threading.Thread(target=kill)
    killer.start()
    stirred = trained(run, loaded)
    killer.join(PATIENCE)
    assert [stirred[step]["engine/restarts"] for step in (1, 2)] == [0, 1]
    for step in (1, 2):
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean"):
            assert stirred[step][name] == pytest.approx(calm[step][name], rel=1e-5, abs=1e-7), (step, name)


@pytest.mark.long
def test_one_server_uses_the_devices_of_two_ranks(standin, tiny_folder, tmp_path):
    """The first rank starts it and fills it from both ranks' shards; the second rank has no server."""
    two = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes", f"{SECTION}.tensor_model_parallel_size=2")
    run, loaded = training(tiny_folder, tmp_path, f"{SECTION}.invariant=true", *two)
    assert list(run.rollout.engine.ranks) == [0] and run.rollout.engine.group.size == 2
    metrics = trained(run, loaded)
    for step in (1, 2):
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-4
        assert metrics[step]["actor/grad_norm"] > 0
