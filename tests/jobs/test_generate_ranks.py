"""burnish generate with several engines: the responses of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from burnish.config import load
from burnish.distributed.processes import Processes
from burnish.errors import UserError
from burnish.jobs import generate as job
from burnish.jobs.generate import generate
from burnish.loop.elastic import ElasticEngines
from burnish.loop.launch import WorkerProgram

from ..keys import ranks
from .test_generate import prompts, rows, settings
from .test_pictures import asked, questions
from .test_pictures import model as vision_model

__all__ = ["prompts", "rows", "settings", "vision_model"]
RAY = ("trainer.n_gpus_per_node=2", "trainer.launcher=ray")
TWO = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes", "data.batch_size=3")


def test_two_engines_generate_what_one_does(settings, capsys):
    expected = pq.read_table(generate(settings()))
    table = pq.read_table(generate(settings(*TWO, "rollout.disable_log_stats=false", out="two.parquet")))
    assert table.equals(expected)
    printed = capsys.readouterr().out
    assert "engines: 2 x cpu for engine" in printed
    assert "engines 2" in printed and "5/5 prompts" in printed


@pytest.mark.parametrize(
    ("override", "observe", "given"),
    [
        ("trainer.nnodes=2", ranks.nodes, RAY),
        ("trainer.n_gpus_per_node=4", ranks.seats, RAY),
        ("trainer.launcher=processes", ranks.starter, RAY),
        ("trainer.ray_wait_register_center_timeout=7", ranks.patience, RAY),
        ("ray_init.num_cpus=5", ranks.ray_start, RAY),
        ("ray_init.options={address: auto}", ranks.ray_start, RAY),
        ("ray_init.timeline_json_file=timeline.json", ranks.timelines, RAY),
    ],
)
def test_keys_of_processes_act(settings, override, observe, given):
    def observed(*more):
        cfg = load(settings(*given, *more), job="generate").cfg
        return observe(ranks.Launch(cfg, job.pools(cfg), WorkerProgram("burnish.jobs.generate_worker:GenerateWorker")))

    assert observed(override) != observed()


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "ray"])
def test_other_launchers(settings, tmp_path, launcher):
    expected = pq.read_table(generate(settings()))
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [sys.executable, "-m", *(torchrun if launcher == "torchrun" else []), "burnish", "generate"]
    more = (TWO[0], f"trainer.launcher={launcher}")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *settings(*more, out="two.parquet")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "two.parquet").equals(expected)


@pytest.mark.long
def test_pictures_reach_every_engine(vision_model):
    prompts = [*questions(), *questions()[::-1]]
    assert asked(vision_model, prompts, *TWO).responses == asked(vision_model, prompts).responses


@pytest.fixture
def kill(monkeypatch):
    """kill(*ranks): end these engines when the first prompts are submitted."""
    respond = job.respond

    def kill(*ranks):
        def killing(cfg, engine, samples, decode):
            assert isinstance(engine, ElasticEngines) and isinstance(engine.group.starter, Processes)
            for rank in ranks:
                os.kill(engine.group.starter.pid(engine.group.names[rank]), signal.SIGKILL)
            return respond(cfg, engine, samples, decode)

        monkeypatch.setattr(job, "respond", killing)

    return kill


@pytest.mark.long
def test_prompts_of_an_engine_that_dies_go_to_the_others(settings, kill):
    expected = generate(settings()).responses
    kill(1)
    assert generate(settings(*TWO, out="two.parquet")).responses == expected


@pytest.mark.long
def test_without_any_engine_nothing_is_written(settings, kill, tmp_path):
    kill(0, 1)
    with pytest.raises(UserError, match="No engine is left"):
        generate(settings(*TWO, out="two.parquet"))
    assert not (tmp_path / "two.parquet").exists()
