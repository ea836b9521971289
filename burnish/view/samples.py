"""The trajectories of a run: rollouts/{step}.jsonl, indexed line by line, read one record at a time, and searched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.view.json_lines import open_regular, parse_object, read_lines
from burnish.view.metrics import number

MAX_ROWS = 200_000  # of one step
EXCERPT = 160  # characters of a text in a list
# Entries of a record that are not extras of the reward.
KNOWN = frozenset(
    {
        *("input", "output", "gts", "score", "step", "uid", "sample", "finish_reason", "data_source", "problem"),
        *("logprobs", "turns", "overlong", "overlong_reward", "media"),
    }
)


@dataclass(frozen=True)
class Sample:
    """What a list shows about a trajectory."""

    row: int
    uid: str
    sample: int
    score: float | None
    finish_reason: str
    data_source: str
    num_turns: int
    tools: tuple[str, ...]  # names of called tools
    tool_seconds: float
    problem: bool  # the reward or the conversation failed
    prompt: str  # excerpts
    response: str
    characters: int  # of the response


@dataclass
class StepFile:
    """One rollouts file: a summary and the offset of every line."""

    path: Path
    samples: list[Sample] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def record(self, row: int) -> dict[str, Any]:
        """The whole record of a row; empty if the file changed under us."""
        if not 0 <= row < len(self.offsets):
            return {}
        with open_regular(self.path) as file:
            file.seek(self.offsets[row])
            line = next((line for _, line in read_lines(file)), b"")
        return parse_object(line) or {}


def index_step(path: Path) -> StepFile:
    """Read a file once. OSError if it cannot be opened."""
    result = StepFile(path)
    with open_regular(path) as file:
        for offset, line in read_lines(file):
            record = parse_object(line)
            if record is None:
                continue
            result.samples.append(summarize(record, len(result.samples)))
            result.offsets.append(offset)
            if len(result.samples) >= MAX_ROWS:
                break
    return result


def summarize(record: Mapping[str, Any], row: int) -> Sample:
    """A record in short. Its values may be of any type."""
    turns = [turn for turn in listed(record.get("turns")) if isinstance(turn, Mapping)]
    calls = [call for turn in turns for call in listed(turn.get("tool_calls")) if isinstance(call, Mapping)]
    sample = record.get("sample")
    response = text_of(record.get("output"))
    return Sample(
        row=row,
        uid=text_of(record.get("uid"))[:EXCERPT],
        sample=sample if isinstance(sample, int) else row,
        score=number(record.get("score")),
        finish_reason=text_of(record.get("finish_reason"))[:EXCERPT],
        data_source=text_of(record.get("data_source"))[:EXCERPT],
        num_turns=len(turns),
        tools=tuple(sorted({call_name(call) for call in calls})),
        tool_seconds=sum(number(turn.get("latency")) or 0.0 for turn in turns if turn.get("role") != "assistant"),
        problem=bool(record.get("problem")),
        prompt=text_of(record.get("input"))[-EXCERPT:],
        response=response[:EXCERPT],
        characters=len(response),
    )


def call_name(call: Mapping[str, Any]) -> str:
    """The name of a tool call, in our own or OpenAI's form."""
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else call.get("name")
    return text_of(name)[:EXCERPT] or "?"


def extras(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the reward returned beside the score."""
    return {name: value for name, value in record.items() if name not in KNOWN}


def text_of(value: Any) -> str:
    return (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    )


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Match:
    """A trajectory whose record contains the searched text."""

    step: int
    row: int
    before: str
    match: str
    after: str


@dataclass
class SearchResult:
    matches: list[Match] = field(default_factory=list)
    next_step: int | None = None  # where to go on; None: everything was searched


def search(files: Mapping[int, Path], text: str, *, seconds: float = 0.5, limit: int = 200) -> SearchResult:
    """Trajectories whose prompt, response or turns contain a text, ignoring case; newest step first.

    Stops between two steps when the time is up: `next_step` is the step to continue from.
    """
    needle, result, started = text.casefold(), SearchResult(), time.monotonic()
    for step in sorted(files, reverse=True):
        if len(result.matches) >= limit or time.monotonic() - started > seconds:
            result.next_step = step
            break
        result.matches += list(_matches(files[step], step, needle))[:limit]
    return result


def _matches(path: Path, step: int, needle: str) -> Iterator[Match]:
    in_json = json.dumps(needle, ensure_ascii=False)[1:-1].casefold()
    try:
        file = open_regular(path)
    except OSError:
        return
    row = -1
    with file:
        for _, line in read_lines(file):
            if not line.startswith(b"{"):
                continue
            row += 1
            if in_json not in line.decode("utf-8", errors="replace").casefold():
                continue
            record = parse_object(line)
            if record is not None and (match := _excerpt(record, needle)) is not None:
                yield Match(step, row, *match)


def _excerpt(record: Mapping[str, Any], needle: str) -> tuple[str, str, str] | None:
    """The first occurrence in what people wrote and models answered, with its surroundings."""
    turns = [turn for turn in listed(record.get("turns")) if isinstance(turn, Mapping)]
    for text in (record.get("output"), record.get("input"), *(turn.get("text") for turn in turns), record.get("gts")):
        text = text_of(text)
        place = text.casefold().find(needle)
        if place >= 0:
            end = place + len(needle)
            return text[max(0, place - 60) : place], text[place:end], text[end : end + 60]
    return None
