"""`burnish view --text`: curves and samples of a run as lines for a terminal.

Every function yields lines of at most `width` columns (None: of any length) that are safe to print.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

from burnish.errors import UserError
from burnish.escape import printable
from burnish.log.console import fit
from burnish.log.curves import sparkline
from burnish.log.step_format import duration
from burnish.log.validation_score import validation_scores
from burnish.view.health import CRITICAL, check
from burnish.view.metrics import number
from burnish.view.runs import RunReader
from burnish.view.samples import Sample, StepFile, call_name, extras, listed, text_of

CURVE_WIDTH = 20
MAX_CURVES = 400
MAX_GROUPS = 20
MAX_TEXT = 2000  # characters of a text, unless all of it is asked for
MAX_EXTRAS = 10
BOLD, DIM, WARNING = "bold", "dim", "yellow"
ROLES = {"assistant": "green", "tool": "magenta", "user": "blue", "system": "blue"}


class Line(NamedTuple):
    text: str
    style: str = ""


def summary(run: RunReader, width: int | None) -> Iterator[Line]:
    """Name, state, progress, validation and alarms."""
    state, metrics = run.state(), run.metrics()
    total = state.total_steps if state.total_steps is not None else "?"
    left = "" if state.seconds_left is None else f", left {duration(state.seconds_left)}"
    yield from _wrapped(f"{run.name}: {state.state}, step {state.step}/{total}{left}", width, BOLD)
    yield from _wrapped(str(run.path), width, DIM)
    scores = validation_scores(metrics.steps)
    if scores is not None:
        yield from _wrapped(f"validation: {scores}", width, "green")
    for alarm in check(metrics.steps, state):
        steps = f" (step {alarm.steps[-1]})" if alarm.steps else ""
        style = ("red" if alarm.severity == CRITICAL else WARNING) if alarm.is_active else DIM
        detail = f": {_one_line(alarm.detail).removesuffix('.')}" if alarm.detail else ""
        text = f"{alarm.severity}: {alarm.text('title')}{steps}{detail}. {alarm.text('remedy')}"
        yield from _wrapped(text, width, style)


def curves(run: RunReader, width: int | None, patterns: list[str]) -> Iterator[Line]:
    """A sparkline per metric, grouped by prefix; `patterns` are names with wildcards, or prefixes."""
    metrics = run.metrics()
    names = sorted(name for name in metrics.names if not patterns or any(_matches(name, entry) for entry in patterns))
    if patterns and not names:
        prefixes = sorted({name.partition("/")[0] for name in metrics.names})
        raise UserError("no such metric", key="--metrics", value=", ".join(patterns), allowed=prefixes)
    heading = None
    for name in names[:MAX_CURVES]:
        prefix, _, rest = name.rpartition("/") if name.startswith("val") else name.partition("/")
        if prefix != heading:
            heading = prefix
            yield Line("")
            yield from _wrapped(prefix, width, BOLD)
        yield Line(_curve(rest or name, metrics.curve(name), width))
    if len(names) > MAX_CURVES:
        yield Line(f"{len(names) - MAX_CURVES} more: --metrics PREFIX", DIM)


def samples(run: RunReader, step: int | None, width: int | None, limit: int = MAX_GROUPS) -> Iterator[Line]:
    """The groups of a step, one line each, then how to look at one. None is the newest step."""
    step, file = _step(run, step)
    groups = grouped(file)
    yield from _wrapped(f"step {step}: {len(file.samples)} samples in {len(groups)} groups", width, BOLD)
    for position, group in enumerate(groups[:limit]):
        scores = " ".join(_score(sample.score) for sample in group)
        marks = "".join(f"  {name}" for name in sorted({name for sample in group for name in sample.tools}))
        failed = sum(sample.problem for sample in group)
        marks += f"  {failed} failed" if failed else ""
        yield Line(_cut(f"  {position:>4}  {scores}{marks}  {_one_line(group[0].prompt)}", width))
    if len(groups) > limit:
        yield Line(f"  {len(groups) - limit} more groups: --limit N", DIM)
    yield Line("  --step N and --group N show the texts of a group", DIM)


def group(run: RunReader, step: int | None, position: int, width: int | None, *, full: bool) -> Iterator[Line]:
    """The prompt of a group and its responses, best score first, as turns where there are any."""
    step, file = _step(run, step)
    groups = grouped(file)
    if not 0 <= position < len(groups):
        raise UserError(
            f"step {step} has no such group", key="--group", value=position, allowed=f"0 to {len(groups) - 1}"
        )
    members = sorted(groups[position], key=lambda sample: -(sample.score if sample.score is not None else -math.inf))
    first = file.record(groups[position][0].row)
    yield from _wrapped(f"step {step}, group {position}: {len(members)} samples", width, BOLD)
    yield Line("prompt", ROLES["user"])
    yield from _body(text_of(first.get("input")), width, full)
    if first.get("gts") is not None:
        yield Line("ground truth", ROLES["user"])
        yield from _body(text_of(first.get("gts")), width, full)
    for sample in members:
        yield Line("")
        yield from _sample(sample, file.record(sample.row), width, full)


def matches(run: RunReader, text: str, width: int | None, limit: int = MAX_GROUPS) -> Iterator[Line]:
    """Samples of the whole run that contain a text, newest step first."""
    found, before = [], None
    while len(found) < limit:
        result = run.search(text, before)
        found += result.matches
        before = result.next_step
        if before is None:
            break
    shown = found[:limit]
    yield from _wrapped(
        f"{len(shown)}{'+' if before is not None or len(found) > limit else ''} samples contain {text!r}", width, BOLD
    )
    positions = {step: _positions(run, step) for step in {match.step for match in shown}}
    for match in shown:
        where = f"  --step {match.step} --group {positions[match.step].get(match.row, '?')}"
        excerpt = _one_line(f"{match.before}[{match.match}]{match.after}")
        yield Line(_cut(f"{where}  {excerpt}", width))


def grouped(file: StepFile) -> list[list[Sample]]:
    """The samples of each prompt, in the order of the file."""
    groups: dict[str, list[Sample]] = {}
    for sample in file.samples:
        groups.setdefault(sample.uid or f"row {sample.row}", []).append(sample)
    return list(groups.values())


def _positions(run: RunReader, step: int) -> dict[int, int]:
    """Row -> position of its group."""
    file = run.step_file(step)
    groups = [] if file is None else grouped(file)
    return {sample.row: position for position, members in enumerate(groups) for sample in members}


def _step(run: RunReader, step: int | None) -> tuple[int, StepFile]:
    steps = run.steps()
    if not steps:
        raise UserError(f"{run.name} has no samples on disk", hint="trainer.rollout_data_dir keeps them elsewhere")
    step = steps[-1] if step is None else step
    file = run.step_file(step) if step in steps else None
    if file is None:
        raise UserError("no samples of this step", key="--step", value=step, allowed=f"{steps[0]} to {steps[-1]}")
    return step, file


def _sample(sample: Sample, record: Mapping[str, Any], width: int | None, full: bool) -> Iterator[Line]:
    facts = [f"sample {sample.sample}", f"score {_score(sample.score)}", sample.finish_reason, sample.data_source]
    more = {name: value for name, value in extras(record).items() if not isinstance(value, Mapping | list)}
    facts += [f"{name} {_one_line(text_of(value))[:60]}" for name, value in list(more.items())[:MAX_EXTRAS]]
    yield from _wrapped("  ".join(fact for fact in facts if fact), width, BOLD)
    if record.get("problem"):
        yield from _wrapped(_one_line(text_of(record["problem"])), width, "red")
    turns = [turn for turn in listed(record.get("turns")) if isinstance(turn, Mapping)]
    if not turns:
        yield from _body(text_of(record.get("output")), width, full)
    for turn in turns:
        yield from _turn(turn, width, full)


def _turn(turn: Mapping[str, Any], width: int | None, full: bool) -> Iterator[Line]:
    role = text_of(turn.get("role"))
    reward, latency = number(turn.get("reward")), number(turn.get("latency"))
    facts = [role, *([f"reward {reward:.3g}"] if reward else []), *([f"{latency:.2f} s"] if latency else [])]
    yield from _wrapped("  ".join(facts), width, ROLES.get(role, ""))
    yield from _body(text_of(turn.get("text")), width, full)
    for call in listed(turn.get("tool_calls")):
        if isinstance(call, Mapping):
            function = call.get("function")
            arguments = (function if isinstance(function, Mapping) else call).get("arguments")
            yield from _body(f"calls {call_name(call)}: {text_of(arguments)}", width, full)


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern) or fnmatch.fnmatchcase(name, pattern)


def _curve(name: str, points: list[tuple[int, float]], width: int | None) -> str:
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return _cut(f"  {_one_line(name)}: no finite value", width)
    low, high = min(values), max(values)
    line = sparkline(values, low, high if high > low else low + max(1.0, abs(low)), CURVE_WIDTH)
    numbers = f"{values[-1]:>9.3g}  {low:.3g} to {high:.3g}"
    label = _one_line(name)
    room = 26 if width is None else max(8, min(26, width - CURVE_WIDTH - 34))
    label = f"{_cut(label, room)}{' ' * max(0, room - cell_len(label))}"
    return _cut(f"  {label} {line}{' ' * (CURVE_WIDTH - len(line))} {numbers}", width)


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3g}"


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _cut(text: str, width: int | None) -> str:
    text = printable(text).replace("\n", " ")
    if width is None or cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(0, width - 3))}..."


def _wrapped(text: str, width: int | None, style: str = "") -> Iterator[Line]:
    """Broken between words; a word that is wider than a line is broken too."""
    for line in fit(printable(text).replace("\t", "    "), width).split("\n"):
        if width is None or cell_len(line) <= width:
            yield Line(line, style)
        else:
            yield from (Line(part, style) for part in chop_cells(line, width))


def _body(text: str, width: int | None, full: bool) -> Iterator[Line]:
    """A text with an indent, so that no line of a model looks like one of ours."""
    rest = len(text) - MAX_TEXT
    shown = text if full or rest <= 0 else text[:MAX_TEXT]
    for line in _wrapped(shown, None if width is None else max(10, width - 4)):
        yield Line(f"    {line.text}", line.style)
    if not full and rest > 0:
        yield Line(f"    ... {rest:,} more characters: --full", DIM)
