"""Best, majority and certainty, compared with counting by hand."""

import itertools
import math
from statistics import fmean

import pytest

from burnish.jobs.eval.measure import (
    MAX_SUBSETS,
    ScoredRow,
    best_of,
    interval,
    majority_of,
    sizes_up_to,
    summarize,
)


def scored(*scores, extras=None, problems=None):
    return ScoredRow(list(scores), extras or [{} for _ in scores], problems or [None for _ in scores])


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0, 0.5], [3.0, -1.0, 2.0, 2.0, 7.5]])
def test_the_best_of_k_is_the_mean_over_all_ways_to_take_k(values):
    for k in range(1, len(values) + 1):
        assert best_of(values, k) == pytest.approx(fmean(map(max, itertools.combinations(values, k))))


@pytest.mark.parametrize(("n", "right"), [(4, 0), (4, 1), (4, 4), (10, 3), (200, 7)])
def test_of_right_and_wrong_it_is_pass_at_k(n, right):
    values = [1.0] * right + [0.0] * (n - right)
    for k in (1, 2, n // 2, n):
        assert best_of(values, k) == pytest.approx(1 - math.comb(n - right, k) / math.comb(n, k))


def test_the_majority_wins_and_ties_share():
    values, answers = [1.0, 1.0, 0.0], ["7", "7", "8"]
    assert majority_of(values, answers, 3) == 1.0
    assert majority_of(values, answers, 1) == pytest.approx(2 / 3)
    # of two: {7,7} is right, {7,8} is undecided, twice
    assert majority_of(values, answers, 2) == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_no_answer_is_an_answer_too():
    assert majority_of([0.0, 0.0, 1.0], [None, None, "7"], 3) == 0.0


def test_of_very_many_ways_some_are_drawn_and_always_the_same():
    values, answers = [1.0] * 15 + [0.0] * 15, ["a"] * 15 + ["b"] * 15
    assert math.comb(30, 8) > MAX_SUBSETS
    assert majority_of(values, answers, 8) == majority_of(values, answers, 8)
    assert majority_of(values, answers, 8) == pytest.approx(0.5, abs=0.1)


def test_the_interval_is_about_two_standard_errors_and_seeded():
    means = [float(row % 2) for row in range(400)]
    low, high = interval(means)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.01)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.1)
    assert interval(means) == (low, high)
    assert interval([0.3]) is None


def test_sizes():
    assert [sizes_up_to(n) for n in (1, 2, 5, 8)] == [[], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_every_row_counts_the_same_however_many_responses_it_has():
    found = summarize([scored(1.0, 1.0, 1.0), scored(0.0)])
    assert (found.rows, found.responses, found.score) == (2, 4, 0.5)
    assert found.best_at == {}, "not every row has two"


def test_accuracy_and_not_the_score_says_what_is_right():
    extras = [{"acc": True, "pred": "4"}, {"acc": False, "pred": "5"}]
    found = summarize([scored(1.0, -1.0, extras=extras)] * 3)
    assert (found.score, found.acc) == (0.0, 0.5)
    assert found.pass_at == {1: 0.5, 2: 1.0}
    assert found.best_at == {1: 0.0, 2: 1.0}
    assert found.maj_at == {1: 0.5, 2: 0.5}


def test_scores_in_between_pass_nothing():
    found = summarize([scored(0.2, 0.9)])
    assert found.pass_at == {}
    assert found.best_at == {1: pytest.approx(0.55), 2: 0.9}
    assert (found.acc, found.maj_at) == (None, {})


def test_failures_are_counted():
    assert summarize([scored(0.0, 1.0, problems=["raised", None]), scored(1.0)]).failed == 1
