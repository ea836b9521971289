"""Logger: what every place that takes numbers can do, the table of them, and the fan-out to those a run named."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from burnish.errors import UserError, raise_all
from burnish.log.console import say
from burnish.log.patience import Patience
from burnish.log.redact import redact, redact_text
from burnish.registry import Entry, Registry

LOGGERS = Registry("logger", key="trainer.logger")
# `library` is what must be installed; its name is also the name of the extra that installs it. `ours` answer at once.
LOGGERS.register_lazy("console", "burnish.log.console:ConsoleLogger", ours=True)
LOGGERS.register_lazy("file", "burnish.log.file:FileLogger", ours=True)
LOGGERS.register_lazy("tensorboard", "burnish.log.tensorboard:TensorboardLogger", library="tensorboard")
LOGGERS.register_lazy("wandb", "burnish.log.wandb:WandbLogger", library="wandb")
LOGGERS.register_lazy("swanlab", "burnish.log.swanlab:SwanlabLogger", library="swanlab")
LOGGERS.register_lazy("mlflow", "burnish.log.mlflow:MlflowLogger", library="mlflow")
LOGGERS.register_lazy("trackio", "burnish.log.trackio:TrackioLogger", library="trackio")


@dataclass(frozen=True)
class RunInfo:
    """What a logger is told about the run when it starts."""

    project: str
    name: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    total_steps: int = 0


class Logger(Protocol):
    """A place that takes numbers. It is made without arguments, started once, and closed at least once."""

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        """Open it. `resume_step` is the last step a resumed run keeps; None is a new run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of one step; NaN and infinity are allowed."""

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Rows to read, such as validation generations."""

    def note(self, text: str) -> None:
        """A message about the run."""

    def close(self) -> None:
        """Write out everything. Closing again, or before the start, does nothing."""


class Loggers:
    """All loggers that a run named, as one.

    Names and libraries are checked when it is made, before anything heavy is loaded. A logger that cannot start is the
    user's to mend, except where a run goes on that had it before. One that fails or does not answer later is named once
    on the console, the run goes on, and its numbers are kept in the run folder.
    """

    def __init__(self, names: Sequence[str]) -> None:
        rows = []
        errors: list[UserError] = []
        for name in dict.fromkeys(names):
            try:
                rows.append(_installed(LOGGERS[name]))
            except UserError as error:
                errors.append(error)
        raise_all(errors)
        self.loggers: dict[str, Logger] = {row.name: row.load()() for row in rows}
        self._trackers = {row.name: Patience(self.loggers[row.name]) for row in rows if not row.metadata.get("ours")}
        self._started: list[str] = []
        self._failed: set[str] = set()
        self._begun: tuple[RunInfo, int | None] | None = None

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        run = replace(run, config=redact(run.config))
        self._begun = run, resume_step
        for name in list(self.loggers):
            self._started.append(name)  # also when it fails half-way: close() then ends what it began
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
        numbers = {name: float(value) for name, value in metrics.items()}
        self._each("log", step, numbers)
        if self._failed and "file" not in self.loggers:
            self._keep_in_file(step, numbers)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._each("table", name, step, list(columns), [list(row) for row in rows])

    def note(self, text: str) -> None:
        self._each("note", redact_text(text))

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

    def _call(self, name: str, method: str, *arguments: Any, **more: Any) -> None:
        if name in self._trackers:
            self._trackers[name].call(method, *arguments, **more)
        else:
            getattr(self.loggers[name], method)(*arguments, **more)

    def _keep_in_file(self, step: int, numbers: dict[str, float]) -> None:
        """From now on the run folder has what a tracker did not take."""
        info, resume_step = self._begun
        self.loggers["file"] = LOGGERS["file"].load()()
        self.loggers["file"].start(info, resume_step=resume_step)
        self.loggers["file"].log(step, numbers)
        self._started.append("file")
        say(f"numbers are kept in {info.folder} from step {step} on", style="yellow")

    def _report(self, name: str, method: str, error: Exception) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        text = redact_text(
            f"logger {name!r} failed in {method}: {type(error).__name__}: {error}. "
            "The run goes on; further failures of this logger are not shown."
        )
        try:
            say(text, style="yellow")
        except OSError:  # standard output itself is gone; standard error may not be
            logging.getLogger("burnish").warning(text)


def _installed(row: Entry) -> Entry:
    library = row.metadata.get("library")
    if library is not None and importlib.util.find_spec(library) is None:
        raise UserError(
            f"the library {library} is not installed",
            key=LOGGERS.key,
            value=row.name,
            hint=f"pip install 'burnish[{library}]'",
        )
    return row
