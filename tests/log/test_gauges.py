"""Metrics as gauges of a cluster's dashboard."""

from __future__ import annotations

import math

import pytest

from burnish.log.gauges import GaugeLogger
from burnish.log.logger import RunInfo


class KeptGauge:
    def __init__(self, name, description, labels):
        self.made_with = name, description, labels
        self.values = []

    def set(self, value):
        self.values.append(value)


@pytest.fixture
def gauges():
    return {}


@pytest.fixture
def logger(gauges, tmp_path):
    def make(name, description, labels):
        assert name not in gauges, "a gauge is made once"
        gauges[name] = KeptGauge(name, description, labels)
        return gauges[name]

    logger = GaugeLogger(make)
    logger.start(RunInfo(project="math", name="first", folder=tmp_path))
    return logger


def test_each_metric_is_one_gauge_with_the_labels_of_the_run(logger, gauges):
    logger.log(1, {"critic/score/mean": 0.25})
    logger.log(2, {"critic/score/mean": 0.5, "actor/grad_norm": math.nan})
    score = gauges["burnish_critic_score_mean"]
    assert score.made_with == (
        "burnish_critic_score_mean",
        "critic/score/mean",
        {"project": "math", "run": "first"},
    )
    assert score.values == [0.25, 0.5]
    assert gauges["burnish_step"].values == [1.0, 2.0]
    (norm,) = gauges["burnish_actor_grad_norm"].values
    assert math.isnan(norm)


def test_tables_and_notes_make_no_gauges(logger, gauges):
    logger.table("validation", 1, ["text"], [["a"]])
    logger.note("hello")
    logger.close()
    assert gauges == {}
