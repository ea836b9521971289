"""What goes into a reward and what comes out: Sample, Score, and the Outcome that crosses the process border."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The kinds of problem a sample can have; `Scorer.problems` counts them under these names.
RAISED = "raised"
INVALID = "invalid result"
TIMED_OUT = "timed out"
DIED = "died"
KINDS = (None, RAISED, INVALID, TIMED_OUT, DIED)  # None: there is no problem


@dataclass(frozen=True)
class Sample:
    """One response and what is known about its prompt. Whole texts are there only if the scorer `reads_prompts`."""

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
    """What a reward gave. `problem` says why `value` is the fallback score; it is None when all went well."""

    value: float
    extras: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Problem:
    """One distinct problem since the last drain: how often, and the first sample that had it."""

    text: str
    count: int
    first: Sample


class Outcome(NamedTuple):
    """A worker's answer for one sample. `kind` is None when `value` is a score, else `text` says what went wrong."""

    value: float = 0.0
    extras: dict[str, Any] = {}  # never mutated: a NamedTuple has no default factory
    kind: str | None = None
    text: str = ""
    printed: str = ""
