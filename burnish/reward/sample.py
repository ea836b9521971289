"""Sample (input of a reward), Score (its output), and Outcome (a worker's reply)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The kinds of problem a sample can have; `Scorer.problems` counts them under these names.
RAISED = "raised"
INVALID = "invalid result"
TIMED_OUT = "timed out"
DIED = "died"
KINDS = (None, RAISED, INVALID, TIMED_OUT, DIED)  # None: no problem


@dataclass(frozen=True)
class Sample:
    """One response and the data of its prompt. `prompt` and `query` are set only if the scorer `reads_prompts`."""

    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: dict[str, Any]
    uid: str
    sample: int
    prompt: str = ""  # the prompt's text, with special tokens
    query: str = ""  # prompt and response, with special tokens


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


class Outcome(NamedTuple):
    """A worker's reply for one sample. If `kind` is None, `value` is the score, else `text` describes the problem."""

    value: float = 0.0
    extras: dict[str, Any] = {}  # never mutated: a NamedTuple has no default factory
    kind: str | None = None
    text: str = ""
    printed: str = ""
