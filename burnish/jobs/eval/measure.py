"""Metrics of an evaluation: mean score with confidence interval, pass@k, best@k and maj@k."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

RESAMPLES = 1000
MAX_SUBSETS = 256  # subsets of k responses for maj@k; all subsets if there are fewer
SEED = 42


@dataclass(frozen=True)
class ScoredRow:
    """One row: the scores, extras and problems of its responses."""

    scores: list[float]
    extras: list[dict[str, Any]]
    problems: list[str | None]


@dataclass(frozen=True)
class Summary:
    """The metrics of one data source. Means are over rows, of the mean over a row's responses."""

    rows: int
    responses: int
    score: float
    interval: tuple[float, float] | None  # 95% confidence interval over rows; None for a single row
    acc: float | None  # if the reward returns it
    pass_at: dict[int, float] = field(default_factory=dict)  # at least one of k correct, if scores are 0 or 1
    best_at: dict[int, float] = field(default_factory=dict)  # the best score of k
    maj_at: dict[int, float] = field(default_factory=dict)  # score of the majority answer, if the reward returns pred
    failed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarize(rows: Sequence[ScoredRow]) -> Summary:
    """Summarize rows; k goes up to the smallest number of responses per row."""
    scores = [row.scores for row in rows]
    accuracies = [values for row in rows if (values := _numbers(row, "acc")) is not None]
    has_acc = len(accuracies) == len(rows)
    correctness = accuracies if has_acc else scores
    sizes = sizes_up_to(min(map(len, scores)))
    is_binary = all(value in (0.0, 1.0) for values in correctness for value in values)
    has_predictions = all("pred" in extras for row in rows for extras in row.extras)
    means = [float(np.mean(values)) for values in scores]
    return Summary(
        rows=len(rows),
        responses=sum(map(len, scores)),
        score=float(np.mean(means)),
        interval=interval(means),
        acc=float(np.mean([np.mean(values) for values in accuracies])) if has_acc else None,
        pass_at={k: _mean(best_of(values, k) for values in correctness) for k in sizes} if is_binary else {},
        best_at={k: _mean(best_of(values, k) for values in scores) for k in sizes},
        maj_at={
            k: _mean(_majority(row, values, k) for row, values in zip(rows, correctness, strict=True)) for k in sizes
        }
        if has_predictions
        else {},
        failed=sum(problem is not None for row in rows for problem in row.problems),
    )


def best_of(values: Sequence[float], k: int) -> float:
    """The mean over all subsets of size k of the best value. For zeros and ones this is pass@k:
    1 - C(n - c, k) / C(n, k) with c ones, which does not depend on the order (Chen et al. 2021, arXiv:2107.03374)."""
    ordered = sorted(values)
    counts = [
        math.comb(below, k - 1) for below in range(len(ordered))
    ]  # number of subsets in which this value is the best
    return sum(count * value for count, value in zip(counts, ordered, strict=True)) / math.comb(len(ordered), k)


def majority_of(values: Sequence[float], answers: Sequence[Any], k: int) -> float:
    """The mean over subsets of size k of the value of the most frequent answer; ties are averaged."""
    texts = [str(answer) for answer in answers]
    subsets = _subsets(len(values), k)
    return _mean(_majority_value([(texts[index], values[index]) for index in subset]) for subset in subsets)


def interval(means: Sequence[float]) -> tuple[float, float] | None:
    """95% confidence interval of the mean, by a seeded bootstrap over rows."""
    if len(means) < 2:
        return None
    generator, values = np.random.default_rng(SEED), np.asarray(means)
    resampled = [values[generator.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


def sizes_up_to(limit: int) -> list[int]:
    """1, 2, 4, ... and `limit` itself; empty if `limit` is 1."""
    if limit < 2:
        return []
    return [*(size for size in (2**power for power in range(32)) if size < limit), limit]


def _subsets(n: int, k: int) -> list[tuple[int, ...]]:
    if math.comb(n, k) <= MAX_SUBSETS:
        return list(itertools.combinations(range(n), k))
    generator = np.random.default_rng([SEED, n, k])
    return [tuple(generator.choice(n, k, replace=False).tolist()) for _ in range(MAX_SUBSETS)]


def _majority_value(votes: list[tuple[str, float]]) -> float:
    by_answer: dict[str, list[float]] = {}
    for answer, value in votes:
        by_answer.setdefault(answer, []).append(value)
    most = max(map(len, by_answer.values()))
    return _mean(_mean(values) for values in by_answer.values() if len(values) == most)


def _majority(row: ScoredRow, values: Sequence[float], k: int) -> float:
    return majority_of(values, [extras["pred"] for extras in row.extras], k)


def _numbers(row: ScoredRow, name: str) -> list[float] | None:
    """This entry of the extras of every response; None if it is missing or not a number in one of them."""
    values = [extras.get(name) for extras in row.extras]
    numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
    return numbers if len(numbers) == len(values) else None


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))
