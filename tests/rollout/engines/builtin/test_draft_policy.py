"""How many drafts are verified, from given step times: no test measures time."""

from __future__ import annotations

import itertools
import random

import pytest

from burnish.rollout.engines.builtin.draft_index import MIN_CHANCE
from burnish.rollout.engines.builtin.draft_policy import MAX_BALANCE, MAX_LOSS, MIN_STEPS, DraftPolicy, StepTimes


def measured(overhead, per_row, row_multiple=1, rows=(4, 8, 16, 32)):
    """A policy that has seen steps of these costs."""
    policy = DraftPolicy(row_multiple)
    for number in range(40):
        count = rows[number % len(rows)]
        policy.add_step(count, count, count, overhead + per_row * count)
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
        policy.add_step(4, 4, 4, 1.0)
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


def looks(policy, steps, chances, drafting, tokens=8):
    """Steps of 8 sequences in which the policy looked for drafts, which takes `drafting` steps' time."""
    found = []
    for step in range(steps):
        seconds = 0.0
        if policy.wants_drafts():
            seconds = drafting * policy.times.predict(8)
            counts = policy.choose([chances] * 8, seconds)
            found.append(step)
        rows = 8 + (sum(counts) if seconds else 0)
        policy.add_step(8, rows, tokens if rows > 8 else 8, policy.times.predict(rows), seconds)
    return found


def test_looks_that_do_not_pay_take_a_small_part_of_all_steps():
    policy = measured(overhead=1.0, per_row=0.01)
    found = looks(policy, 1000, [0.01], drafting=0.5)
    gaps = {after - before for before, after in itertools.pairwise(found[1:])}
    assert found[0] == 0 and max(gaps) - min(gaps) <= 1
    assert 0.5 * len(found) <= MAX_LOSS * 1000 + 0.5
    policy.balance = 0.0
    policy.choose([[0.9] * 4] * 8, seconds=0.0)
    assert policy.pays  # one look that pays ends that
    policy.balance = -1.0
    assert policy.wants_drafts()


def test_earlier_gains_cover_looks_that_do_not_pay():
    policy = measured(overhead=1.0, per_row=0.01)
    looks(policy, 40, [0.9, 0.8], drafting=0.1, tokens=20)
    assert policy.balance == MAX_BALANCE
    assert looks(policy, 16, [0.01], drafting=0.5) == list(range(16))


def test_drafts_that_keep_being_wrong_are_given_up():
    """However likely they seem, their verification takes longer than what it gains, and that is booked."""
    policy = measured(overhead=0.1, per_row=0.1)
    found = looks(policy, 600, [0.99, 0.98], drafting=0.1, tokens=8)
    assert 5 < len(found) < 60 and policy.balance < 0.0 and not policy.pays


def test_unlikely_drafts_are_not_looked_for():
    policy = measured(overhead=0.5, per_row=0.02)
    policy.choose([[0.9, 0.7, 0.01]], seconds=0.0)
    assert policy.least_chance == 0.35
    policy.choose([[0.9, 0.7]], seconds=0.0)  # all were worth it: perhaps more are
    assert policy.least_chance == MIN_CHANCE


def test_the_time_of_drafting_counts():
    """Drafts that were found are verified; if finding them took longer than they save, they do not pay."""
    policy = measured(overhead=1.0, per_row=0.0)
    assert policy.choose([[0.9]], seconds=5.0) == [1]
    assert not policy.pays
