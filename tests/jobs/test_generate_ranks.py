"""burnish generate with several engines: the responses of one."""

from __future__ import annotations

import os
import signal

import pyarrow.parquet as pq
import pytest

from burnish.distributed.processes import Processes
from burnish.errors import UserError
from burnish.jobs import generate as job
from burnish.jobs.generate import generate
from burnish.loop.elastic import ElasticEngines

from .test_generate import prompts, rows, settings

__all__ = ["prompts", "rows", "settings"]
TWO = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes", "data.batch_size=3")


def test_two_engines_generate_what_one_does(settings, capsys):
    expected = pq.read_table(generate(settings()))
    table = pq.read_table(generate(settings(*TWO, "rollout.disable_log_stats=false", out="two.parquet")))
    assert table.equals(expected)
    printed = capsys.readouterr().out
    assert "rollout: 2 x cpu for engine" in printed
    assert "engines 2" in printed and "5/5 prompts" in printed


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
