"""How many drafts are verified, from given step times: no test measures time."""

from __future__ import annotations

import itertools
import random

import pytest

from burnish.rollout.engines.builtin.draft_policy import MAX_PAUSE, MIN_STEPS, DraftPolicy, StepTimes


def measured(overhead, per_row, row_multiple=1, rows=(4, 8, 16, 32)):
    """A policy that has seen steps of these costs."""
    policy = DraftPolicy(row_multiple)
    for number in range(40):
        count = rows[number % len(rows)]
        policy.add_step(count, overhead + per_row * count)
    return policy


@pytest.mark.parametrize(("overhead", "per_row"), [(1.0, 0.0), (1.0, 0.01), (0.1, 0.2), (0.0, 0.5)])
def test_step_times_are_fitted(overhead, per_row):
    times = StepTimes()
    rng = random.Random(0)
    for _ in range(60):
        rows = rng.randint(1, 64)
        times.add(rows, (overhead + per_row * rows) * rng.uniform(0.95, 1.05))
    for rows in (1, 16, 64):
        assert times.predict(rows) == pytest.approx(overhead + per_row * rows, rel=0.2)


def test_one_slow_step_changes_little():
    times = StepTimes()
    for number in range(60):
        times.add(8 + number % 8, 1.0 if number != 50 else 500.0)
    assert times.predict(8) < 1.2


def test_no_drafts_before_steps_are_measured():
    policy = DraftPolicy(1)
    for _ in range(MIN_STEPS):
        assert not policy.wants_drafts()
        policy.add_step(4, 1.0)
    assert policy.wants_drafts()


def test_all_that_is_likely_where_rows_are_free():
    policy = measured(overhead=1.0, per_row=0.0)
    assert policy.choose([[0.9, 0.8, 0.7], [], [0.6, 0.1]], seconds=0.0) == [3, 0, 2]


def test_none_where_rows_cost_all():
    policy = measured(overhead=0.0, per_row=0.1)
    assert policy.choose([[0.9, 0.8], [0.9, 0.8]], seconds=0.0) == [0, 0]


def test_the_likeliest_where_rows_cost_something():
    """A row costs 0.02 of a step's 0.5: a draft pays where it is right more often than a row of the step is cheap."""
    policy = measured(overhead=0.5, per_row=0.02)
    low, high = policy.choose([[0.04, 0.03], [0.9, 0.7]], seconds=0.0)
    assert (low, high) == (0, 2)


def test_a_promise_below_the_minimum_gain_is_none():
    policy = measured(overhead=1.0, per_row=0.0)
    assert policy.choose([[0.04]], seconds=0.0) == [0]


def test_drafts_in_place_of_padding_are_free():
    policy = measured(overhead=0.0, per_row=0.1, row_multiple=8, rows=(8, 16, 24, 32))
    assert policy.choose([[0.9] * 16], seconds=0.0) == [7]


def test_no_step_has_more_than_twice_the_rows_of_any_before():
    policy = measured(overhead=1.0, per_row=0.0, rows=(4,))
    assert sum(policy.choose([[0.9] * 16] * 4, seconds=0.0)) == 2 * 4 - 4


def test_looks_that_do_not_pay_become_rare():
    policy = measured(overhead=1.0, per_row=0.01)
    looks = []
    for step in range(1000):
        if policy.wants_drafts():
            policy.choose([[0.01]] * 8, seconds=0.1)
            looks.append(step)
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert gaps[:4] == [2, 3, 5, 9] and set(gaps[6:]) == {MAX_PAUSE + 1}
    policy.choose([[0.9] * 4] * 8, seconds=0.0)
    assert policy.wants_drafts() and policy.pause == 0  # one look that pays ends that


def test_the_time_of_drafting_counts():
    """Drafts that were found are verified; if finding them took longer than they save, the next look comes later."""
    policy = measured(overhead=1.0, per_row=0.0)
    assert policy.choose([[0.9]], seconds=5.0) == [1]
    assert policy.pause > 0
