"""The simulation of asynchronous training: what must hold whatever the lengths and speeds are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.doctor.planner.simulation import Lengths, Outcome, Scenario, Speed, draw, simulate

STEPS = 6
MOST = 3  # staleness


def scenario(staleness: int, *, engines=2, slots=2, batch=6, speed=None, per_token=0.02, sync=0.5) -> Scenario:
    return Scenario(
        engines, slots, batch, staleness, speed or Speed(0.01), lambda tokens: 1.0 + per_token * tokens, sync, STEPS
    )


@st.composite
def runs(draw_from, varying_speed=False):
    """Sizes, and lengths of all batches."""
    sizes = {
        "engines": draw_from(st.integers(1, 4)),
        "slots": draw_from(st.integers(1, 4)),
        "batch": draw_from(st.integers(1, 8)),
        "per_token": draw_from(st.sampled_from([0.0, 0.001, 0.05])),
        "sync": draw_from(st.sampled_from([0.0, 0.3])),
    }
    if varying_speed:
        sizes["speed"] = Speed(0.01, draw_from(st.sampled_from([0.0, 0.004])))
    rows = st.lists(st.integers(1, 400).map(float), min_size=sizes["batch"], max_size=sizes["batch"])
    return sizes, draw_from(st.lists(rows, min_size=STEPS + MOST, max_size=STEPS + MOST))


def played(sizes: dict, lengths: list, staleness: int) -> Outcome:
    return simulate(scenario(staleness, **sizes), lengths[: STEPS + staleness])


@settings(max_examples=40, deadline=None)
@given(runs(varying_speed=True))
def test_a_synchronous_step_is_the_sum_of_its_phases(run):
    sizes, lengths = run
    outcome = played(sizes, lengths, 0)
    plan = scenario(0, **sizes)
    before = 0.0
    for step, end in enumerate(outcome.ends):
        released, finished = outcome.rollouts[step]
        assert released == pytest.approx(before)
        assert end == pytest.approx(finished + plan.train(sum(lengths[step])) + plan.sync)
        before = end
    assert outcome.lags == [0] * STEPS
    assert outcome.in_flight == 0


@settings(max_examples=40, deadline=None)
@given(runs())
def test_more_staleness_is_never_slower(run):
    """With engines whose speed does not depend on their load: else another placement of samples may be worse."""
    sizes, lengths = run
    ends = [played(sizes, lengths, staleness).ends for staleness in range(MOST + 1)]
    for earlier, later in itertools.pairwise(ends):
        for slow, fast in zip(earlier, later, strict=True):
            assert fast <= slow + (1 + STEPS) * sizes["sync"] + 1e-9
            # Engines are interrupted by syncs; without them nothing may be later.
            assert sizes["sync"] or fast <= slow + 1e-9


@settings(max_examples=40, deadline=None)
@given(runs(varying_speed=True), st.integers(0, MOST))
def test_samples_are_conserved_and_no_batch_is_too_stale(run, staleness):
    sizes, lengths = run
    outcome = played(sizes, lengths, staleness)
    assert outcome.trained == [sizes["batch"]] * STEPS
    assert outcome.tokens == [sum(row) for row in lengths[:STEPS]]
    assert max(outcome.lags) <= staleness and min(outcome.lags) >= 0
    begun = len(outcome.rollouts) * sizes["batch"]
    assert begun == sum(outcome.trained) + outcome.in_flight
    # Engines cannot have decoded faster than their slots allow, nor longer than the run took.
    assert outcome.engine_busy <= sizes["engines"] * outcome.ends[-1] + 1e-9
    assert outcome.trainer_busy <= outcome.ends[-1] + 1e-9
    least = sum(outcome.tokens) * 0.01 / (sizes["engines"] * sizes["slots"])
    assert outcome.ends[-1] >= least


def test_throughput_saturates_at_the_slower_half():
    """With equal lengths, one step of staleness hides the shorter half completely."""
    lengths = [[100.0] * 4 for _ in range(STEPS + MOST)]
    sizes = {"engines": 2, "slots": 2, "batch": 4, "per_token": 0.0, "sync": 0.0}  # 1 s of decoding, 1 s of training
    sync, *stale = (played(sizes, lengths, staleness) for staleness in range(MOST + 1))
    assert sync.ends[-1] == pytest.approx(2.0 * STEPS)
    for outcome in stale:
        assert outcome.ends[-1] == pytest.approx(1.0 + STEPS)
    assert stale[0].throughput(1) == pytest.approx(400.0)


def test_a_long_tail_costs_more_with_more_samples_and_staleness_hides_it():
    shares = []
    for engines in (2, 32):
        plan = scenario(0, engines=engines, slots=8, batch=8 * engines, per_token=0.0)
        lengths = draw(scenario(MOST, engines=engines, slots=8, batch=8 * engines), Lengths(200, 1.0, 4000), seed=1)
        sync = simulate(plan, lengths[:STEPS])
        stale = simulate(scenario(2, engines=engines, slots=8, batch=8 * engines, per_token=0.0), lengths)
        assert stale.throughput(2) > 1.2 * sync.throughput(2)
        shares.append(sync.engine_busy / (engines * sync.ends[-1]))
    assert shares[1] < shares[0]


def test_lengths_stop_at_the_longest():
    plan = scenario(0, batch=500)
    found = [length for batch in draw(plan, Lengths(100, 2.0, 300)) for length in batch]
    assert max(found) == 300 and min(found) >= 1
    assert sorted(found)[len(found) // 2] == pytest.approx(100, rel=0.2)
    assert draw(plan, Lengths(100, 0.0, 300))[0] == [100] * 500
