"""How long conversations are expected to be away."""

from __future__ import annotations

import pytest

from burnish.rollout.return_times import NEWEST, ReturnTimes


def test_the_mean_of_what_a_tool_took():
    times = ReturnTimes()
    assert times.expected("search") is None
    for seconds in (1.0, 2.0, 6.0):
        times.add("search", seconds)
    times.add("calculator", 0.0)
    assert times.expected("search") == pytest.approx(3.0)
    assert times.expected("calculator") == 0.0
    assert times.expected("new") == pytest.approx(9 / 4)  # of all tools


def test_it_follows_a_tool_that_becomes_slow():
    times = ReturnTimes()
    for _ in range(1000):
        times.add("search", 1.0)
    times.add("search", 11.0)
    assert times.expected("search") == pytest.approx(1.0 + 10 * NEWEST)
