"""Numbers of an evaluation: the mean and how sure it is, and what the best or the majority of k responses is worth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

RESAMPLES = 1000
SUBSETS = 256  # of k responses that a majority is taken of; all of them where there are no more
SEED = 42


@dataclass(frozen=True)
class Scored:
    """One row: the scores of its responses, what the reward said beside them, and which of them failed."""

    scores: list[float]
    extras: list[dict[str, Any]]
    problems: list[str | None]


@dataclass(frozen=True)
class Summary:
    """The numbers of one data source. Every mean is over rows, of the mean over a row's responses."""

    rows: int
    responses: int
    score: float
    interval: tuple[float, float] | None  # 95 %, over rows; None for a single row
    acc: float | None  # where the reward gives it
    pass_at: dict[int, float] = field(default_factory=dict)  # at least one of k right, where right and wrong is all
    best_at: dict[int, float] = field(default_factory=dict)  # the score of the best of k
    maj_at: dict[int, float] = field(
        default_factory=dict
    )  # the worth of the majority of k, where the reward gives pred
    failed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Sequence[Scored]) -> Summary:
    """k goes up to the number of responses that every row has."""
    scores = [row.scores for row in rows]
    accuracies = [_numbers(row, "acc") for row in rows]
    has_acc = all(one is not None for one in accuracies)
    worth = accuracies if has_acc else scores
    sizes = sizes_up_to(min(map(len, scores)))
    right_or_wrong = all(value in (0.0, 1.0) for values in worth for value in values)
    has_answers = all("pred" in extras for row in rows for extras in row.extras)
    means = [float(np.mean(values)) for values in scores]
    return Summary(
        rows=len(rows),
        responses=sum(map(len, scores)),
        score=float(np.mean(means)),
        interval=interval(means),
        acc=float(np.mean([np.mean(values) for values in accuracies])) if has_acc else None,
        pass_at={k: _mean(best_of(values, k) for values in worth) for k in sizes} if right_or_wrong else {},
        best_at={k: _mean(best_of(values, k) for values in scores) for k in sizes},
        maj_at={k: _mean(_majority(row, values, k) for row, values in zip(rows, worth, strict=True)) for k in sizes}
        if has_answers
        else {},
        failed=sum(problem is not None for row in rows for problem in row.problems),
    )


def best_of(values: Sequence[float], k: int) -> float:
    """The mean of the best of k, over all ways to take k of these values. Of zeros and ones this is pass@k:
    1 - C(n - c, k) / C(n, k) with c ones, which does not depend on the order (Chen et al. 2021, arXiv:2107.03374)."""
    ordered = sorted(values)
    ways = [math.comb(below, k - 1) for below in range(len(ordered))]  # ways in which this value is the best
    return sum(way * value for way, value in zip(ways, ordered, strict=True)) / math.comb(len(ordered), k)


def majority_of(values: Sequence[float], answers: Sequence[Any], k: int) -> float:
    """The mean worth of the most frequent answer among k, over ways to take k; equally frequent ones share."""
    texts = [str(answer) for answer in answers]
    picks = list(_subsets(len(values), k))
    return _mean(_worth_of_majority([(texts[one], values[one]) for one in pick]) for pick in picks)


def interval(means: Sequence[float]) -> tuple[float, float] | None:
    """Where the mean would lie 95 times in 100, had other rows been drawn: a bootstrap over rows, seeded."""
    if len(means) < 2:
        return None
    generator, values = np.random.default_rng(SEED), np.asarray(means)
    found = [values[generator.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the number itself; nothing where a row has one response."""
    if most < 2:
        return []
    return [*(size for size in (2**power for power in range(32)) if size < most), most]


def _subsets(n: int, k: int) -> list[tuple[int, ...]]:
    if math.comb(n, k) <= SUBSETS:
        return list(itertools.combinations(range(n), k))
    generator = np.random.default_rng([SEED, n, k])
    return [tuple(generator.choice(n, k, replace=False).tolist()) for _ in range(SUBSETS)]


def _worth_of_majority(votes: list[tuple[str, float]]) -> float:
    by_answer: dict[str, list[float]] = {}
    for answer, worth in votes:
        by_answer.setdefault(answer, []).append(worth)
    most = max(map(len, by_answer.values()))
    return _mean(_mean(worths) for worths in by_answer.values() if len(worths) == most)


def _majority(row: Scored, values: Sequence[float], k: int) -> float:
    return majority_of(values, [extras["pred"] for extras in row.extras], k)


def _numbers(row: Scored, name: str) -> list[float] | None:
    """An entry of the extras of every response, or None where one has no such number."""
    found = [extras.get(name) for extras in row.extras]
    return [float(one) for one in found] if all(isinstance(one, bool | int | float) for one in found) else None


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))
