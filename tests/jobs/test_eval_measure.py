"""best@k, maj@k and the confidence interval, compared with enumeration."""

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
def test_best_at_k_is_the_mean_over_all_subsets(values):
    for k in range(1, len(values) + 1):
        assert best_of(values, k) == pytest.approx(fmean(map(max, itertools.combinations(values, k))))


@pytest.mark.parametrize(("n", "right"), [(4, 0), (4, 1), (4, 4), (10, 3), (200, 7)])
def test_best_of_binary_scores_is_pass_at_k(n, right):
    values = [1.0] * right + [0.0] * (n - right)
    for k in (1, 2, n // 2, n):
        assert best_of(values, k) == pytest.approx(1 - math.comb(n - right, k) / math.comb(n, k))


def test_the_majority_wins_and_ties_share():
    values, answers = [1.0, 1.0, 0.0], ["7", "7", "8"]
    assert majority_of(values, answers, 3) == 1.0
    assert majority_of(values, answers, 1) == pytest.approx(2 / 3)
    # subsets of two: {7,7} is correct, {7,8} is a tie, twice
    assert majority_of(values, answers, 2) == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_missing_answers_count_as_an_answer():
    assert majority_of([0.0, 0.0, 1.0], [None, None, "7"], 3) == 0.0


def test_subsets_are_sampled_deterministically():
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


def test_rows_have_equal_weight():
    summary = summarize([scored(1.0, 1.0, 1.0), scored(0.0)])
    assert (summary.rows, summary.responses, summary.score) == (2, 4, 0.5)
    assert summary.best_at == {}, "not every row has two"


def test_accuracy_takes_precedence_over_the_score():
    extras = [{"acc": True, "pred": "4"}, {"acc": False, "pred": "5"}]
    summary = summarize([scored(1.0, -1.0, extras=extras)] * 3)
    assert (summary.score, summary.acc) == (0.0, 0.5)
    assert summary.pass_at == {1: 0.5, 2: 1.0}
    assert summary.best_at == {1: 0.0, 2: 1.0}
    assert summary.maj_at == {1: 0.5, 2: 0.5}


def test_no_pass_at_k_for_other_scores():
    summary = summarize([scored(0.2, 0.9)])
    assert summary.pass_at == {}
    assert summary.best_at == {1: pytest.approx(0.55), 2: 0.9}
    assert (summary.acc, summary.maj_at) == (None, {})


def test_failures_are_counted():
    assert summarize([scored(0.0, 1.0, problems=["raised", None]), scored(1.0)]).failed == 1
