"""Sample (input of a reward), Score (its output), and Outcome (a worker's reply)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The kinds of problem a sample can have; `Scorer.problems` counts them under these names.
RAISED = "raised"
INVALID = "invalid result"
TIMED_OUT = "timed out"
DIED = "died"
KINDS = (None, RAISED, INVALID, TIMED_OUT, DIED)  # None: no problem

MAX_SCORE = 1e15  # of which float32, in which scores are normalized, can still hold the square
MAX_EXTRAS_DEPTH = 16
MAX_EXTRAS_BYTES = 2**20  # as JSON, for one sample
MIN_INT, MAX_INT = -(2**63), 2**64  # of integers in extras: what tables and loggers can hold


@dataclass(frozen=True)
class SampleRow:
    """The row of a response as it is in the data, for functions that take columns by name (TRL)."""

    prompt: str | list[dict[str, Any]]  # a string, or chat messages
    columns: dict[str, Any]  # all but the prompt
    completion_ids: list[int]


@dataclass(frozen=True)
class Sample:
    """One response and the data of its prompt. The last fields are set only if the scorer reads them (`Inputs`)."""

    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: dict[str, Any]
    uid: str
    sample: int
    prompt: str = ""  # the prompt's text, with special tokens
    query: str = ""  # prompt and response, with special tokens
    row: SampleRow | None = None
    pictures: dict[str, list[Any]] = field(default_factory=dict, repr=False)  # "image" and "video"


@dataclass(frozen=True)
class Score:
    """The result for one sample. `problem` explains why `value` is the fallback score; None means no problem."""

    value: float
    extras: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Problem:
    """One distinct problem since the last drain: its number of occurrences and the first sample with it."""

    text: str
    count: int
    first: Sample


@dataclass(frozen=True)
class Report:
    """What a scorer did since the last drain: samples, distinct problems in order of first appearance, notices."""

    num_samples: int = 0
    problems: tuple[Problem, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def num_failed(self) -> int:
        return sum(problem.count for problem in self.problems)

    def by_count(self) -> list[Problem]:
        """The problems, most frequent first."""
        return sorted(self.problems, key=lambda problem: -problem.count)


def check_score(value: int | float) -> float:
    """The number as a float. ValueError, with a text that continues "returned ...", if it is no usable score."""
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise ValueError(f"{score} instead of a finite number")
    if abs(score) > MAX_SCORE:
        raise ValueError(f"{score:g}; a score is at most {MAX_SCORE:g}")
    return score


def check_extras(value: Any, depth: int = 0) -> None:
    """ValueError unless this is JSON data that files and loggers can hold."""
    if depth > MAX_EXTRAS_DEPTH:
        raise ValueError(f"extras that are nested more than {MAX_EXTRAS_DEPTH} times")
    if isinstance(value, int) and not MIN_INT <= value < MAX_INT:
        raise ValueError("an integer that is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_extras(item, depth + 1)


class Outcome(NamedTuple):
    """A worker's reply for one sample. If `kind` is None, `value` is the score, else `text` describes the problem."""

    value: float = 0.0
    extras: dict[str, Any] = {}  # never mutated: a NamedTuple has no default factory
    kind: str | None = None
    text: str = ""
    printed: str = ""
