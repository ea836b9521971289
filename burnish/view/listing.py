"""The runs below a folder, each in a line: state, step, time left, best validation.

Made for hundreds of runs: of long files only the end is read, and of metrics.jsonl only lines with a validation are
parsed.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.log.file import METRICS, NOTES
from burnish.log.folder import LOCK
from burnish.log.step_format import duration
from burnish.log.timeline import NAME as TIMELINE
from burnish.log.validation_score import ValidationScores, is_validation, validation_scores
from burnish.storage import FINISHED, STEP_PREFIX
from burnish.untrusted import read_json_object, read_text
from burnish.view.json_lines import open_regular, parse_object
from burnish.view.liveness import RUNNING, run_state
from burnish.view.metrics import number

UNREADABLE = "unreadable"
SILENCE, MIN_SILENCE = 10.0, 120.0  # steps' worth of seconds, and seconds, without a sign of life
MAX_DEPTH = 4  # folders between the given folder and a run: runs/demo/seed_1/run
MAX_FOLDERS = 20_000  # that are searched
TAIL = 1 << 18  # bytes
MAX_TAIL = 1 << 26
PACE_STEPS = 20
MAX_FINISHED = 1 << 28
PARTS_OF_A_STEP = ("timing_s/step", "timing_s/testing", "timing_s/save_checkpoint")
_TOTAL = re.compile(r"^  total_training_steps: (\d{1,12})$", re.MULTILINE)


@dataclass(frozen=True)
class RunSummary:
    """One run, as a list shows it."""

    path: Path
    state: str
    step: int = 0
    total_steps: int | None = None
    seconds_left: float | None = None
    validation: ValidationScores | None = None
    updated: float | None = None  # seconds since 1970
    problem: str = ""  # the error of a crashed run, the phase of a hang, or why a folder cannot be read


def list_runs(folder: Path) -> tuple[list[RunSummary], bool]:
    """The runs in and below a folder, those that wrote last first; and whether all folders were searched."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError("no such folder", key="FOLDER", value=str(folder))
    walk = Walk()
    runs = [summarize(path) for path in walk.runs(folder, MAX_DEPTH)]
    return sorted(runs, key=lambda run: -(run.updated or 0.0)), walk.left > 0


def summarize(path: Path) -> RunSummary:
    """The state of one run. What cannot be read is named, and is no error."""
    try:
        return _summarize(path)
    except (OSError, UserError) as error:
        return RunSummary(path, UNREADABLE, problem=error.problem if isinstance(error, UserError) else str(error))


class Walk:
    """Searches folders level by level, up to MAX_FOLDERS of them."""

    def __init__(self) -> None:
        self.left = MAX_FOLDERS

    def runs(self, folder: Path, depth: int) -> Iterator[Path]:
        """Links are not followed, and a run has no other runs inside."""
        self.left -= 1
        if self.left <= 0:
            return
        try:
            with os.scandir(folder) as entries:
                children = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            if (folder / LOCK).exists():
                yield folder
            return
        if is_run(children):
            yield folder
        elif depth > 0:
            names = sorted(name for name, is_folder in children.items() if is_folder and not _is_skipped(name))
            for name in names:
                yield from self.runs(folder / name, depth - 1)


def is_run(names: dict[str, bool]) -> bool:
    """Whether a folder with these entries is that of a run."""
    return any(name in names for name in (METRICS, FINISHED, LOCK)) or {"config.yaml", "command.txt"} <= names.keys()


def _is_skipped(name: str) -> bool:
    return name.startswith((".", STEP_PREFIX)) or name in ("node_modules", "__pycache__", "site-packages")


def _summarize(path: Path) -> RunSummary:
    if not os.access(path, os.R_OK | os.X_OK):
        raise UserError("no permission to read the folder")
    finished = _finished(path)
    updated = _newest_time(path)
    state, problem = run_state(path, updated, is_finished=bool(finished))
    lines = _last_objects(path / METRICS)
    last = lines[-1].get("step") if lines else 0
    step = last if type(last) is int else 0
    if not lines and _size(path / METRICS) > 0:
        problem = problem or f"{METRICS} has no readable line"
    total = _total_steps(path, finished)
    pace = _seconds_per_step(lines)
    left = None
    if state == RUNNING and pace is not None and updated is not None:
        silence = max(0.0, time.time() - updated)
        left = None if total is None else max(0.0, pace * max(0, total - step) - silence)
        if silence > max(MIN_SILENCE, SILENCE * pace):
            problem = problem or f"no sign of life for {duration(silence)}"
    return RunSummary(path, state, step, total, left, _validation(path, finished), updated, problem)


def _finished(path: Path) -> dict[str, Any]:
    record = _object(path / FINISHED, MAX_FINISHED)
    return record if all(type(record.get(name)) is int for name in ("step", "total_steps")) else {}


def _total_steps(path: Path, finished: dict[str, Any]) -> int | None:
    timeline = _last_objects(path / TIMELINE)
    for value in (finished.get("total_steps"), timeline[-1].get("total_steps") if timeline else None):
        if type(value) is int and value > 0:
            return value
    try:
        found = _TOTAL.search(read_text(path / "config.yaml"))  # parsing YAML is slow
    except (OSError, UserError):
        return None
    return int(found[1]) if found is not None else None


def _seconds_per_step(lines: list[dict[str, Any]]) -> float | None:
    """The mean of the last steps, with their validations and checkpoints."""
    rows = [line["data"] for line in lines if isinstance(line.get("data"), dict)]
    seconds = [
        sum(number(row.get(name)) or 0.0 for name in PARTS_OF_A_STEP) for row in rows if PARTS_OF_A_STEP[0] in row
    ]
    mean = sum(seconds) / len(seconds) if seconds else math.nan
    return mean if math.isfinite(mean) else None


def _validation(path: Path, finished: dict[str, Any]) -> ValidationScores | None:
    recorded = finished.get("validation")
    if isinstance(recorded, dict) and recorded:
        steps = {int(step): _numbers(row) for step, row in recorded.items() if step.isdecimal()}
        return validation_scores(steps)
    steps: dict[int, dict[str, float]] = {}
    for line in _lines_with_validation(path / METRICS):
        entry = parse_object(line) or {}
        if type(entry.get("step")) is int:
            steps[entry["step"]] = _numbers(entry.get("data"))
    return validation_scores(steps)


def _numbers(row: Any) -> dict[str, float]:
    items = row.items() if isinstance(row, dict) else ()
    return {name: value for name, raw in items if is_validation(name) and (value := number(raw)) is not None}


def _lines_with_validation(path: Path) -> Iterator[bytes]:
    content, place = _tail(path, MAX_TAIL), 0
    while (place := content.find(b'"val', place)) >= 0:  # "val-core/... or "val/loss
        start, end = content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place)
        if end < 0:
            return
        yield content[start:end]
        place = end


def _last_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file's last lines; empty where there is none. Lines may be as long as MAX_TAIL."""
    size = TAIL
    while True:
        content = _tail(path, size)
        lines = content.split(b"\n")[:-1]  # the last one is incomplete or empty
        if len(content) == size:
            lines = lines[1:]  # the first one may be cut
        objects = [entry for line in lines[-PACE_STEPS:] if (entry := parse_object(line)) is not None]
        if objects or len(content) < size or size >= MAX_TAIL:
            return objects
        size *= 16


def _tail(path: Path, size: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except FileNotFoundError:
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _object(path: Path, limit: int = 1 << 20) -> dict[str, Any]:
    try:
        return read_json_object(path, limit=limit)
    except (OSError, UserError):
        return {}


def _newest_time(path: Path) -> float | None:
    files = (path / name for name in (METRICS, TIMELINE, NOTES, FINISHED, LOCK))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
