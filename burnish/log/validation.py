"""Validation metrics from several responses per prompt: mean@N, best@N, worst@N and maj@N, under verl's names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

RESAMPLES = 1000
SEED = 42
CORE = ("mean", "best", "maj")


def validation_metrics(
    data_sources: Sequence[str],
    uids: Sequence[Hashable],
    scores: Sequence[float],
    extras: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, float]:
    """val-core/... and val-aux/... from one entry per response.

    `uids` identify the prompt of each response. `extras` are other values of the reward, one per response (None if
    missing): numbers are aggregated like the score; `pred` (the extracted answer) adds maj@N. The core variable of a
    source is `acc` if the reward returns it, else the score, named `reward`.
    """
    table = {name: list(values) for name, values in (extras or {}).items()} | {"reward": list(scores)}
    for name, values in {"data_sources": data_sources, "uids": uids, **table}.items():
        if len(values) != len(scores):
            raise ValueError(f"{name} has {len(values)} entries, there are {len(scores)} scores")
    predictions = table.pop("pred", None)
    metrics: dict[str, float] = {}
    for source, prompts in _by_prompt(data_sources, uids).items():
        by_variable = {name: _mean_over_prompts(prompts, values, predictions) for name, values in table.items()}
        metrics |= _full_names(source, {name: values for name, values in by_variable.items() if values})
    return metrics


def pick_generations(
    inputs: Sequence[str], outputs: Sequence[str], scores: Sequence[float], count: int
) -> list[tuple[str, str, float]]:
    """Rows for trainer.log_val_generations: the same at every validation, independent of their order."""
    rows = sorted(zip(inputs, outputs, scores, strict=True), key=lambda row: row[0])
    return [rows[row] for row in pick_rows(len(rows), count)]


def pick_rows(num_rows: int, count: int) -> list[int]:
    """Row numbers, scattered over all, always the same."""
    return np.random.RandomState(SEED).permutation(num_rows)[:count].tolist()


def _by_prompt(data_sources: Sequence[str], uids: Sequence[Hashable]) -> dict[str, list[list[int]]]:
    """For each source, the row indices of each of its prompts."""
    sources: dict[str, dict[Hashable, list[int]]] = {}
    for row, (source, uid) in enumerate(zip(data_sources, uids, strict=True)):
        sources.setdefault(source, {}).setdefault(uid, []).append(row)
    return {source: list(prompts.values()) for source, prompts in sources.items()}


def _mean_over_prompts(prompts: list[list[int]], values: list[Any], predictions: list[Any] | None) -> dict[str, float]:
    """The metrics of one variable, averaged over the prompts that have it."""
    by_name: dict[str, list[float]] = {}
    for rows in prompts:
        rows = [row for row in rows if isinstance(values[row], (Real, np.bool_))]
        if not rows:
            continue
        numbers = np.array([float(values[row]) for row in rows])
        answers = None if predictions is None else [predictions[row] for row in rows]
        for name, value in _prompt_metrics(numbers, answers).items():
            by_name.setdefault(name, []).append(value)
    return {name: float(np.mean(column)) for name, column in by_name.items()}


def _prompt_metrics(values: np.ndarray, answers: list[Any] | None) -> dict[str, float]:
    """Metrics of one prompt's N values. best, worst and maj are bootstrap estimates for n = 2, 4, ..., N."""
    total = len(values)
    metrics = {f"mean@{total}": float(values.mean())}
    if total == 1:
        return metrics
    metrics[f"std@{total}"] = float(values.std())
    for size in _sizes(total):
        indices = _resamples(total, size)
        metrics |= _moments(f"best@{size}", values[indices].max(axis=1))
        metrics |= _moments(f"worst@{size}", values[indices].min(axis=1))
        if answers is not None and all(answer is not None for answer in answers):
            metrics |= _moments(f"maj@{size}", _majority(values, answers, indices))
    return metrics


def _sizes(total: int) -> list[int]:
    """Powers of two below the total, and the total."""
    return [size for size in (2**power for power in range(1, 32)) if size < total] + [total]


@lru_cache(maxsize=64)
def _resamples(total: int, size: int) -> np.ndarray:
    """Indices of each resample: [RESAMPLES, size]. Every prompt uses the same seed, as in verl."""
    return np.random.RandomState(SEED).randint(0, total, size=(RESAMPLES, size))


def _moments(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}/mean": float(values.mean()), f"{name}/std": float(values.std())}


def _majority(values: np.ndarray, answers: list[Any], indices: np.ndarray) -> np.ndarray:
    """The value of each resample's most frequent answer; ties go to the answer drawn first."""
    codes = {answer: code for code, answer in enumerate(dict.fromkeys(map(str, answers)))}
    voted = np.array([codes[str(answer)] for answer in answers])[indices]  # [RESAMPLES, size]
    resample = np.arange(len(indices))
    size = indices.shape[1]
    counts = np.zeros((len(indices), len(codes)), dtype=np.int64)
    first = np.full((len(indices), len(codes)), size, dtype=np.int64)
    for position in reversed(range(size)):
        counts[resample, voted[:, position]] += 1
        first[resample, voted[:, position]] = position
    winner = (counts * (size + 1) - first).argmax(axis=1)
    return values[indices[resample, first[resample, winner]]]


def _full_names(source: str, by_variable: dict[str, dict[str, float]]) -> dict[str, float]:
    """Full metric names: the core variable at the largest N under val-core, everything else under val-aux."""
    core = "acc" if "acc" in by_variable else "reward"
    metrics = {}
    for variable, values in by_variable.items():
        largest = max(_count(name) for name in values)
        for name, value in values.items():
            is_core = variable == core and name.startswith(CORE) and _count(name) == largest
            metrics[f"{'val-core' if is_core else 'val-aux'}/{source}/{variable}/{name}"] = value
    return metrics


def _count(name: str) -> int:
    """The N of mean@N or best@N/std."""
    return int(name.partition("@")[2].partition("/")[0])
