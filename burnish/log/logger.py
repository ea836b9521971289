"""The Logger protocol, the registry of loggers, and Loggers, which forwards to those in trainer.logger."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from burnish.errors import UserError, install_extra, raise_all
from burnish.escape import escape
from burnish.log.console import ConsoleLogger, say
from burnish.log.tracker_thread import TrackerThread
from burnish.redact import redact, redact_text
from burnish.registry import Entry, Registry
from burnish.storage import disk_full

LOGGERS = Registry("logger", key="trainer.logger")
# `library` must be installed, by the extra of the same name. `local` loggers do not block and need no TrackerThread.
LOGGERS.register_lazy("console", "burnish.log.console:ConsoleLogger", local=True)
LOGGERS.register_lazy("file", "burnish.log.file:FileLogger", local=True)
LOGGERS.register_lazy("tensorboard", "burnish.log.tensorboard:TensorboardLogger", library="tensorboard")
LOGGERS.register_lazy("wandb", "burnish.log.wandb:WandbLogger", library="wandb")
LOGGERS.register_lazy("swanlab", "burnish.log.swanlab:SwanlabLogger", library="swanlab")
LOGGERS.register_lazy("mlflow", "burnish.log.mlflow:MlflowLogger", library="mlflow")
LOGGERS.register_lazy("trackio", "burnish.log.trackio:TrackioLogger", library="trackio")


@dataclass(frozen=True)
class RunInfo:
    """Description of the run, passed to `Logger.start`."""

    project: str
    name: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    total_steps: int = 0


class Logger(Protocol):
    """Receives metrics. Created without arguments, started once, and closed at least once."""

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        """Open it. `resume_step` is the last step that a resumed run keeps; None for a new run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one step; NaN and infinity are allowed."""

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table, such as validation generations."""

    def note(self, text: str) -> None:
        """Log a message about the run."""

    def close(self) -> None:
        """Flush everything. Closing twice, or before the start, does nothing."""


class Loggers:
    """All loggers of a run.

    The constructor checks names and libraries, before models are loaded. A logger that cannot start is a UserError,
    except in a resumed run. If a logger fails or hangs later, this is reported once on the console, the run continues,
    and its metrics are written to the run folder.
    """

    def __init__(self, names: Sequence[str]) -> None:
        entries = []
        errors: list[UserError] = []
        for name in dict.fromkeys(names):
            try:
                entries.append(_check_installed(LOGGERS[name]))
            except UserError as error:
                errors.append(error)
        raise_all(errors)
        self.loggers: dict[str, Logger] = {entry.name: entry.load()() for entry in entries}
        self._trackers = {
            entry.name: TrackerThread(self.loggers[entry.name]) for entry in entries if not entry.metadata.get("local")
        }
        self._started: list[str] = []
        self._failed: set[str] = set()
        self._start_arguments: tuple[RunInfo, int | None] | None = None

    def add(self, name: str, logger: Logger) -> None:
        """One more logger, which does not block; before the start."""
        self.loggers[name] = logger

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        run = replace(run, config=redact(run.config))
        self._start_arguments = run, resume_step
        for name in list(self.loggers):
            self._started.append(name)  # even if `start` fails half-way, so that close() cleans up
            try:
                self._call(name, "start", run, resume_step=resume_step)
            except Exception as error:
                if resume_step is not None and name in self._trackers:
                    self._started.remove(name)
                    self._report(name, "start", error)
                    continue
                self.close()
                if isinstance(error, UserError):
                    raise
                problem = redact_text(f"cannot start: {type(error).__name__}: {error}")
                raise UserError(problem, key=LOGGERS.key, value=name, hint=f"{LOGGERS.key}=[console,file]") from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        metrics = {name: float(value) for name, value in metrics.items()}
        self._each("log", step, metrics)
        if self._failed and "file" not in self.loggers and self._start_arguments is not None:
            run, resume_step = self._start_arguments
            self._fall_back_to_file(run, resume_step)
            self.loggers["file"].log(step, metrics)
            say(f"metrics are written to {run.folder} from step {step} on", style="yellow")

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._each("table", name, step, list(columns), [list(row) for row in rows])

    def note(self, text: str) -> None:
        self._each("note", escape(redact_text(text)))

    @contextmanager
    def activity(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show on the console, if it is one of the loggers, that something is under way, also before the start."""
        console = self.loggers.get("console")
        if not isinstance(console, ConsoleLogger):
            yield lambda text: None
            return
        with console.activity(text) as update:
            yield update

    def close(self) -> None:
        self._each("close")
        self._started = []

    def __enter__(self) -> Loggers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each(self, method: str, *arguments: Any) -> None:
        for name in self._started:
            try:
                self._call(name, method, *arguments)
            except Exception as error:
                self._report(name, method, error)

    def _call(self, name: str, method: str, *arguments: Any, **kwargs: Any) -> None:
        if name in self._trackers:
            self._trackers[name].call(method, *arguments, **kwargs)
        else:
            getattr(self.loggers[name], method)(*arguments, **kwargs)

    def _fall_back_to_file(self, run: RunInfo, resume_step: int | None) -> None:
        """Start a file logger for the metrics that a tracker did not accept."""
        self.loggers["file"] = LOGGERS["file"].load()()
        self.loggers["file"].start(run, resume_step=resume_step)
        self._started.append("file")

    def _report(self, name: str, method: str, error: Exception) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        text = redact_text(
            f"{disk_full(error)}logger {name!r} failed in {method}: {type(error).__name__}: {error}. "
            "The run continues; further failures of this logger are not reported."
        )
        try:
            say(text, style="yellow")
        except OSError:  # standard output is closed; try standard error
            logging.getLogger("burnish").warning(text)


def _check_installed(entry: Entry) -> Entry:
    library = entry.metadata.get("library")
    if library is not None and importlib.util.find_spec(library) is None:
        raise UserError(
            f"the library {library} is not installed",
            key=LOGGERS.key,
            value=entry.name,
            hint=install_extra(library),
        )
    return entry
