from __future__ import annotations

import itertools
import math

import pytest

from burnish.algos.schedules import SCHEDULES


def curve(name, steps, **settings):
    return [SCHEDULES[name].load()(step, **settings) for step in range(steps)]


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_warm_up_begins_above_zero_and_ends_at_one(name):
    assert curve(name, 4, warmup=4, total=100) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert curve(name, 1, warmup=0, total=100) == [1.0]


@pytest.mark.parametrize(("name", "end"), [("constant", 1.0), ("cosine", 0.1), ("linear", 0.1), ("wsd", 0.1)])
def test_after_the_end_it_stays(name, end):
    assert curve(name, 60, warmup=2, total=20, min_ratio=0.1)[20:] == pytest.approx([end] * 40)


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_it_never_rises_after_warm_up(name):
    factors = curve(name, 30, warmup=3, total=20)
    assert all(a >= b for a, b in itertools.pairwise(factors[3:]))


def test_linear_and_cosine_are_their_formulas():
    for step in range(5, 20):
        p = (step - 5) / 15
        settings = {"warmup": 5, "total": 20, "min_ratio": 0.2, "num_cycles": 0.5}
        assert SCHEDULES["linear"].load()(step, **settings) == pytest.approx(1 - 0.8 * p)
        assert SCHEDULES["cosine"].load()(step, **settings) == pytest.approx(
            0.2 + 0.8 * (1 + math.cos(math.pi * p)) / 2
        )


def test_cosine_waves_follow_num_cycles_and_keep_to_the_floor():
    factors = curve("cosine", 41, warmup=0, total=40, min_ratio=0.3, num_cycles=1.0)
    assert factors[20] == pytest.approx(0.3) and factors[40] == pytest.approx(1.0)
    assert min(factors) >= 0.3


def test_wsd_is_stable_for_nine_tenths():
    factors = curve("wsd", 101, warmup=0, total=100)
    assert factors[:91] == [1.0] * 91
    assert factors[95] == pytest.approx(0.5) and factors[100] == pytest.approx(0.0)


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_warm_up_longer_than_the_run(name):
    assert curve(name, 3, warmup=10, total=3) == pytest.approx([0.1, 0.2, 0.3])
