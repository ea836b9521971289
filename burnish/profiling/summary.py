"""What a trace says: the longest kernels or operators, the seconds of each phase, the idle share. Loads no torch."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.errors import UserError

MAX_BYTES = 2 << 30  # of a trace, uncompressed
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
OPERATORS = ("cpu_op",)
LABELS = ("user_annotation",)
MICROSECONDS = 1e6

Span = tuple[float, float]  # start and end, in microseconds


@dataclass(frozen=True)
class Entry:
    """All calls of one kernel or operator."""

    name: str
    seconds: float  # of an operator, without those that it called
    calls: int


@dataclass(frozen=True)
class Summary:
    """Of one trace. `kind` is "kernels" where a GPU was recorded, else "operators"."""

    kind: str
    seconds: float  # from the first to the last event
    idle_share: float  # of that time in which no kernel, or no operator of any thread, ran
    top: list[Entry] = field(default_factory=list)  # longest first
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each label, longest first


def summarize(path: Path | str, top: int = 20, max_bytes: int | None = None) -> Summary:
    """Summarize a trace in Chrome's format (.json or .json.gz). UserError if it is no such file, or a larger one."""
    events = read_events(Path(path), MAX_BYTES if max_bytes is None else max_bytes)
    kernels = [event for event in events if event["cat"] in KERNELS]
    operators = [event for event in events if event["cat"] in OPERATORS]
    chosen = kernels or operators
    spans = [_span(event) for event in events]
    start, end = min((s for s, _ in spans), default=0.0), max((e for _, e in spans), default=0.0)
    busy = covered(_span(event) for event in chosen)
    return Summary(
        "kernels" if kernels else "operators",
        (end - start) / MICROSECONDS,
        1 - busy / (end - start) if end > start else 0.0,
        _longest(chosen, {} if kernels else _called_time(operators), top),
        _labels(events),
    )


def read_events(path: Path, max_bytes: int) -> list[dict[str, Any]]:
    """The events with a duration. Anything else in the file is ignored, whoever wrote it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise UserError(f"{path}: the trace has more than {max_bytes >> 20} MiB")
        trace = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a trace in Chrome's format: {error}") from error
    events = trace.get("traceEvents", []) if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise UserError(f"{path}: not a trace in Chrome's format: no list of events")
    return [event for event in events if _is_complete(event)]


def covered(spans: Iterable[Span]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _is_complete(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and isinstance(event.get("cat"), str)
        and isinstance(event.get("tid"), int | str)
        and all(type(event.get(name)) in (int, float) for name in ("ts", "dur"))
    )


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _called_time(operators: list[dict[str, Any]]) -> dict[int, float]:
    """Microseconds that each operator spent in those it called, by its identity."""
    inner: dict[int, float] = defaultdict(float)
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in operators:
        threads[event.get("pid"), event["tid"]].append(event)
    for events in threads.values():
        stack: list[dict[str, Any]] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while stack and _span(stack[-1])[1] <= event["ts"]:
                stack.pop()
            if stack:
                inner[id(stack[-1])] += event["dur"]
            stack.append(event)
    return inner


def _longest(events: list[dict[str, Any]], called: dict[int, float], top: int) -> list[Entry]:
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        seconds[event["name"]] += max(0.0, event["dur"] - called.get(id(event), 0.0)) / MICROSECONDS
        calls[event["name"]] += 1
    order = sorted(seconds, key=lambda name: (-seconds[name], name))
    return [Entry(name, seconds[name], calls[name]) for name in order[:top]]


def _labels(events: list[dict[str, Any]]) -> dict[str, float]:
    """Labels of phases; modules and optimizers are labeled too, and left out."""
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        if event["cat"] in LABELS and not event["name"].startswith(("module: ", "Optimizer.")):
            seconds[event["name"]] += event["dur"] / MICROSECONDS
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))
