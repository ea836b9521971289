"""RunReader: everything about a run that its folder holds. Nothing is written, nothing outside the folder is read."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.log.file import METRICS, NOTES
from burnish.log.folder import FAILURE, HOLDER, lock_state
from burnish.log.pictures import FOLDER as PICTURES
from burnish.log.timeline import NAME as TIMELINE
from burnish.log.tokens import FOLDER as TOKENS
from burnish.log.tokens import recorded_steps, token_path
from burnish.profiling.plan import FOLDER as PROFILES
from burnish.profiling.summary import Summary, summarize
from burnish.storage import FINAL_MODEL, FINISHED
from burnish.untrusted import load_yaml, read_json_object, read_text
from burnish.view.json_lines import GrowingFile, open_regular
from burnish.view.listing import MAX_DEPTH, RunSummary, Walk
from burnish.view.listing import summarize as summarize_run
from burnish.view.liveness import RUNNING, run_state
from burnish.view.metrics import Metrics, number
from burnish.view.pictures import is_name, read_picture
from burnish.view.progress import StepInProgress
from burnish.view.samples import SearchResult, StepFile, index_step, search
from burnish.view.token_file import TokenFile, TokenTexts

MAX_STEP_BYTES = 2 * 2**30  # of one rollouts file
MAX_NOTES = 2**20  # characters of the newest notes
MAX_FOUND = 200  # runs
CACHED_STEPS = 8
MAX_PROCESSES = 256  # of a step
MAX_PROFILES = 500  # files
MAX_TRACE_BYTES = 2**29  # uncompressed, of a trace that is summarized
TRACES = (".json", ".json.gz")
_CHECKPOINT = re.compile(r"global_step_(\d{1,12})")


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    state: str  # of view/liveness.py
    step: int
    total_steps: int | None
    started: float | None  # seconds since 1970
    updated: float | None  # the last sign of life
    seconds_per_step: float | None
    seconds_left: float | None
    problem: str = ""  # the error of a crashed run, or where one hung


@dataclass(frozen=True)
class Checkpoint:
    step: int
    path: Path
    bytes: int
    time: float
    is_latest: bool
    is_best: bool


@dataclass(frozen=True)
class Profile:
    """A file that a profiler wrote."""

    name: str  # below the folder of profiles
    path: Path
    bytes: int
    time: float
    is_trace: bool  # in Chrome's format


class RunReader:
    """One run folder. Methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock = threading.RLock()
        self._metrics = Metrics(self.path / METRICS)
        self._timeline = GrowingFile(self.path / TIMELINE)
        self._timeline_lines: dict[int, dict[str, Any]] = {}
        self._steps: OrderedDict[tuple[Any, ...], StepFile] = OrderedDict()
        self._tokens: OrderedDict[tuple[Any, ...], TokenFile] = OrderedDict()
        self._summaries: OrderedDict[tuple[Any, ...], Summary] = OrderedDict()
        self._config: tuple[Any, dict[str, Any]] | None = None
        self._progress: StepInProgress | None = None
        self._summary: RunSummary | None = None
        self._seen: tuple[Any, ...] = ()
        self._profile_lock = threading.Lock()
        self.texts = TokenTexts(self.path / TOKENS)

    @property
    def name(self) -> str:
        """The folder's name; that of its parent too where the folder has a name like any other."""
        is_plain = self.path.name in ("run", "default", "out")
        return f"{self.path.parent.name}/{self.path.name}" if is_plain else self.path.name

    # -- progress ----------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """The metrics up to now."""
        with self._lock:
            self._metrics.refresh()
            return self._metrics

    def timeline(self) -> dict[int, dict[str, Any]]:
        """Step -> {"time", "total_steps", "spans", "processes"}; empty for a run that recorded none."""
        with self._lock:
            replaced, lines = self._timeline.read()
            if replaced:
                self._timeline_lines = {}
            for line in lines:
                if type(line.get("step")) is int:
                    self._timeline_lines[line["step"]] = {
                        "time": number(line.get("time")),
                        "total_steps": line.get("total_steps"),
                        "spans": _spans(line.get("spans")),
                        "processes": _processes(line.get("processes")),
                    }
            return self._timeline_lines

    def state(self) -> RunState:
        """Whether the run is alive, and how far it is."""
        metrics, timeline, finished = self.metrics(), self.timeline(), self.finished()
        step = max(metrics.last_step, max(timeline, default=0))
        total = self._total_steps(timeline, finished)
        updated = _newest_time([self.path / METRICS, self.path / TIMELINE, self.path / NOTES])
        state, problem = run_state(self.path, updated, is_finished=finished is not None)
        pace = _pace(metrics)
        left = pace * max(0, total - step) if pace is not None and total and state == RUNNING else None
        return RunState(state, step, total, self._started(timeline), updated, pace, left, problem)

    def summary(self) -> RunSummary:
        """The same from the ends of the files, for a list of many runs. Kept until a file changes."""
        with self._lock:
            if self._summary is None or self._summary.state == RUNNING or self._seen != self._signature():
                self._seen = self._signature()
                self._summary = summarize_run(self.path)
            return self._summary

    def _signature(self) -> tuple[Any, ...]:
        """Changes when the run wrote something, started or ended."""
        files = (self.path / name for name in (METRICS, TIMELINE, NOTES, FINISHED, HOLDER, FAILURE, "config.yaml"))
        return (lock_state(self.path), *map(_version, files))

    def _total_steps(self, timeline: dict[int, dict[str, Any]], finished: dict[str, Any] | None) -> int | None:
        trainer = self.config().get("trainer")
        declared = trainer.get("total_training_steps") if isinstance(trainer, dict) else None
        last = timeline[max(timeline)]["total_steps"] if timeline else None
        for value in ((finished or {}).get("total_steps"), last, declared):
            if type(value) is int and value > 0:
                return value
        return None

    def _started(self, timeline: dict[int, dict[str, Any]]) -> float | None:
        starts = [start for line in timeline.values() for _, start, _ in line["spans"]]
        return min(starts) if starts else None

    # -- files of the run --------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """config.yaml; empty if there is none. Reading it takes long: do not change the result."""
        version = _version(self.path / "config.yaml")
        with self._lock:
            if self._config is None or self._config[0] != version:
                self._config = version, self._read_config()
            return self._config[1]

    def _read_config(self) -> dict[str, Any]:
        try:
            value = load_yaml(read_text(self.path / "config.yaml"), "config.yaml")
        except (OSError, UserError):
            return {}
        return value if isinstance(value, dict) else {}

    def environment(self) -> dict[str, Any]:
        return self._object("environment.json")

    def finished(self) -> dict[str, Any] | None:
        """The record of a run that came to its end."""
        return self._object(FINISHED) or None

    def command(self) -> list[str]:
        """The command lines that started the run, oldest first."""
        return self._text("command.txt").splitlines()[-50:]

    def notes(self) -> list[str]:
        """What the run reported."""
        return self._text(NOTES, MAX_NOTES).splitlines()[-1000:]

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        latest = self._text("latest_checkpointed_iteration.txt").strip()
        best = self._text("best_checkpointed_iteration.txt").strip()
        found = []
        for folder in self._files("global_step_*"):
            match = _CHECKPOINT.fullmatch(folder.name)
            if match is None or not (folder / "manifest.json").is_file():
                continue
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
            step = match[1]
            found.append(
                Checkpoint(
                    int(step), folder, size, folder.stat().st_mtime, is_latest=step == latest, is_best=step == best
                )
            )
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def has_model(self) -> bool:
        """Whether the trained model is in the run folder."""
        return (self.path / FINAL_MODEL / "config.json").is_file()

    def in_progress(self) -> StepInProgress | None:
        """The step that a running run is in, as far as its journal tells; only conversations have one."""
        journals = [path for path in self._files("journal/*.jsonl") if path.is_file()]
        newest = max(journals, key=lambda path: path.stat().st_mtime, default=None)
        ended = _newest_time([self.path / METRICS])
        if newest is None or self.summary().state != RUNNING or newest.stat().st_mtime < (ended or 0.0):
            return None
        with self._lock:
            if self._progress is None or self._progress.path != newest:
                self._progress = StepInProgress(newest, self.texts)
            self._progress.refresh()
            return self._progress

    def profiles(self) -> list[Profile]:
        """Recordings of profilers in the run folder, in the order of their names."""
        found = []
        for path in sorted(self._files(f"{PROFILES}/**/*"))[:MAX_PROFILES]:
            if path.is_file():
                status = path.stat()
                name = path.relative_to(self.path / PROFILES).as_posix()
                found.append(Profile(name, path, status.st_size, status.st_mtime, path.name.endswith(TRACES)))
        return found

    def profile_summary(self, name: str) -> Summary | None:
        """What a trace says; None if there is none of this name. UserError for a file that is no trace, or too long."""
        profile = next((one for one in self.profiles() if one.name == name and one.is_trace), None)
        if profile is None:
            return None
        with self._profile_lock:  # one at a time: reading a trace takes memory
            return self._cached(self._summaries, profile.path, partial(summarize, max_bytes=MAX_TRACE_BYTES))

    # -- trajectories ------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps whose trajectories are on disk."""
        return sorted(self._rollout_files())

    def token_steps(self) -> list[int]:
        """Steps whose tokens are on disk (trainer.rollout_keep)."""
        return recorded_steps(self.path / TOKENS)

    def step_file(self, step: int) -> StepFile | None:
        """The trajectories of a step; None if it has none."""
        path = self._rollout_files().get(step)
        return None if path is None else self._cached(self._steps, path, index_step)

    def picture(self, name: str) -> dict[str, Any] | None:
        """A picture of a trajectory; None if there is none of this name, or it cannot be shown."""
        path = self.path / PICTURES / name
        return read_picture(path) if is_name(name) and self._is_inside(path) else None

    def token_file(self, step: int) -> TokenFile | None:
        """The tokens of a step; None if they were not recorded, or are damaged."""
        path = token_path(self.path / TOKENS, step)
        if not (path.is_file() and self._is_inside(path)):
            return None
        try:
            return self._cached(self._tokens, path, TokenFile)
        except Exception:  # safetensors has an exception class of its own, and a damaged file is only missing
            return None

    def search(self, text: str, before: int | None = None) -> SearchResult:
        """Search the trajectories of the run, newest step first; `before` continues an earlier search."""
        files = self._rollout_files()
        return search({step: path for step, path in files.items() if before is None or step <= before}, text)

    def _rollout_files(self) -> dict[int, Path]:
        """Step -> file. Files of an earlier run in the same folder are older than this run's first step."""
        started = self._started(self.timeline())
        first = min(self.timeline(), default=0)
        files = {}
        for path in self._files("rollouts/*.jsonl"):
            is_old = started is not None and first <= 1 and path.stat().st_mtime < started
            if path.stem.isdecimal() and not is_old and path.stat().st_size <= MAX_STEP_BYTES:
                files[int(path.stem)] = path
        return files

    def _cached(self, cache: OrderedDict[tuple[Any, ...], Any], path: Path, read: Callable[[Path], Any]) -> Any:
        status = path.stat()
        key = (path, status.st_ino, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in cache:
                cache[key] = read(path)
            cache.move_to_end(key)
            while len(cache) > CACHED_STEPS:
                cache.popitem(last=False)
            return cache[key]

    # -- reading -----------------------------------------------------------------------------------------------------

    def _files(self, pattern: str) -> list[Path]:
        """Existing paths inside the folder; links that lead out of it are left out."""
        try:
            return [path for path in self.path.glob(pattern) if path.exists() and self._is_inside(path)]
        except OSError:
            return []

    def _is_inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.path)

    def _object(self, name: str) -> dict[str, Any]:
        try:
            return read_json_object(self.path / name) if self._is_inside(self.path / name) else {}
        except (OSError, UserError):
            return {}

    def _text(self, name: str, limit: int = 2**20) -> str:
        """The last `limit` bytes of a text file; "" if there is none."""
        path = self.path / name
        if not self._is_inside(path):
            return ""
        try:
            with open_regular(path) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
                return file.read(limit).decode("utf-8", errors="replace")
        except OSError:
            return ""


def find_runs(paths: Iterable[Path]) -> list[RunReader]:
    """The MAX_FOUND newest run folders among these folders and below them, most recently written first."""
    found: dict[Path, RunReader] = {}
    walk = Walk()
    for path in paths:
        path = path.expanduser().resolve()
        if not path.is_dir():
            raise UserError(f"no such folder: {path}", hint="burnish view RUN_FOLDER (trainer.default_local_dir)")
        for folder in walk.runs(path, MAX_DEPTH):
            found.setdefault(folder, RunReader(folder))
    times = {folder: _newest_time([folder / METRICS, folder / "config.yaml"]) or 0.0 for folder in found}
    return sorted(found.values(), key=lambda run: -times[run.path])[:MAX_FOUND]


def unique_names(runs: Sequence[RunReader]) -> list[str]:
    """A name for each run: its own, with as many parent folders as tell it from the others."""
    lengths = [len(Path(run.name).parts) for run in runs]
    while True:
        names = ["/".join(run.path.parts[-length:]) for run, length in zip(runs, lengths, strict=True)]
        counts = Counter(names)
        longer = [
            place for place, run in enumerate(runs) if counts[names[place]] > 1 and lengths[place] < len(run.path.parts)
        ]
        if not longer:
            return names
        for place in longer:
            lengths[place] += 1


def shown(path: Path) -> str:
    """The path, relative to the current folder where it is inside: shorter to read and to type."""
    current = Path.cwd()
    return str(path.relative_to(current)) if path.is_relative_to(current) else str(path)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _newest_time(paths: Iterable[Path]) -> float | None:
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=None)


def _pace(metrics: Metrics, count: int = 20) -> float | None:
    """Median seconds of the last steps."""
    seconds = [value for _, value in metrics.curve("timing_s/step")[-count:]]
    return sorted(seconds)[len(seconds) // 2] if seconds else None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _spans(value: Any) -> list[tuple[str, float, float]]:
    return [span for span in map(_span, _as_list(value)) if span is not None]


def _processes(value: Any) -> dict[str, list[tuple[str, float, float]]]:
    """Spans of each worker process."""
    items = list(value.items())[:MAX_PROCESSES] if isinstance(value, dict) else []
    return {name[:100]: _spans(spans) for name, spans in items}


def _span(value: Any) -> tuple[str, float, float] | None:
    if not (isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)):
        return None
    start, seconds = number(value[1]), number(value[2])
    return None if start is None or seconds is None else (value[0][:100], start, seconds)
