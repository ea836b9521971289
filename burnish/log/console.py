"""Console output: a live display on a terminal, plain lines elsewhere. All messages to the user are printed here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from burnish.escape import printable
from burnish.log.status import LABEL, RunStatus, StatusRegion
from burnish.log.step_format import duration, is_validation_only, step_columns
from burnish.log.step_warnings import step_warnings
from burnish.log.validation_score import is_validation

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

# Columns of a step's line that a narrow terminal leaves out, the first ones first.
DROPPED_FIRST = ("throughput", "lr", "kl", "length", "entropy", "seconds", "left")
MAX_CELL = 300
PROGRESS_LINES = 10  # if there is no progress bar
SECONDS_UNTIL_SHOWN = 2.0  # of an activity, in output that cannot be updated
MAX_BAR = 40
PLAIN = "BURNISH_PLAIN"  # environment variable: plain lines on a terminal too
_display = threading.Lock()  # held by the activity that is shown: one at a time
_regions: list[StatusRegion] = []  # live displays of this process


class Console(RichConsole):
    """The only kind of console here: no markup, and texts cannot act on the terminal, whoever renders them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @property
    def file(self) -> IO[str]:
        """The stream below all proxies: those of rich's displays and those that escape the output of others."""
        file = super().file
        while (inner := getattr(file, "rich_proxied_file", None)) is not None:
            file = inner
        return file

    @file.setter
    def file(self, file: IO[str]) -> None:
        self._file = file

    def print(self, *objects: Any, **options: Any) -> None:
        # Rich drops some control characters from strings; they are to be seen.
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Rich's own control sequences are segments of their own kind."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


@cache
def get_console() -> Console:
    """The shared console."""
    console = Console()
    console.soft_wrap = True  # `fit` breaks lines, and only those for a terminal; log files are read by line
    return console


def say(text: str, style: str = "") -> None:
    """Print a message to the user."""
    console = get_console()
    console.print(fit(printable(text), line_width(console)), style=style or None)


def line_width(console: Console) -> int | None:
    """Columns of a terminal, or of COLUMNS in the environment; None where lines may have any length."""
    return console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdigit() else None


def fit(text: str, width: int | None) -> str:
    """Break long lines between words, with an indent. Paths stay whole, and commands continue with a backslash."""
    if width is None:
        return text
    return "\n".join(line for original in text.split("\n") for line in _broken(original, width))


def _broken(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    body = line.lstrip(" ")
    indent = " " * (len(line) - len(body))
    more = " \\" if indent and body.startswith("burnish ") else ""  # a shell command
    lines, current = [], indent
    for word in body.split(" "):
        candidate = current + word if not current.strip() else f"{current} {word}"
        if current.strip() and cell_len(candidate + more) > width:
            lines.append(current.rstrip() + more)
            candidate = f"{indent}  {word}"
        current = candidate
    return [*lines, current]


def short_path(path: str | Path) -> str:
    """The path relative to the working directory where it lies in it."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


def say_error(text: str) -> None:
    """Print an error to standard error."""
    console = get_stderr()
    console.print(fit(text, line_width(console)), style="red", soft_wrap=True)


@contextmanager
def progress_counter(noun: str, total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number done, for a bar on a terminal and a few lines elsewhere."""
    output = console or get_console()
    if not is_interactive(output):
        printed = 0

        def print_line(done: int) -> None:
            nonlocal printed
            if done * PROGRESS_LINES // max(total, 1) > printed:
                printed = done * PROGRESS_LINES // max(total, 1)
                output.print(f"{done}/{total} {noun}")

        yield print_line
        return
    with _bar(output) as bar:
        task = bar.add_task(noun, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def activity(text: str, *, shown: bool = True, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Show that something is under way: a line with its seconds on a terminal, elsewhere one line after 2 seconds.

    Yields a function that replaces the text. Nested activities show the outer one.
    """
    output = console or get_console()
    if not shown or not _display.acquire(blocking=False):
        yield lambda text: None
        return
    try:
        with _activity_line(text, output) as update:
            yield update
    finally:
        _display.release()


@contextmanager
def _activity_line(text: str, output: Console) -> Iterator[Callable[[str], None]]:
    if not is_interactive(output):
        latest = [text]
        timer = threading.Timer(SECONDS_UNTIL_SHOWN, lambda: output.print(f"{latest[0]} ..."))
        timer.daemon = True
        timer.start()
        try:
            yield lambda text: latest.__setitem__(0, text)
        finally:
            timer.cancel()
        return
    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=output, refresh_per_second=2, transient=True) as line:
        task = line.add_task(text, total=None)
        yield lambda text: line.update(task, description=text)


def get_stderr() -> Console:
    """A console for progress and notices of commands whose standard output is a result."""
    return Console(stderr=True, soft_wrap=True)


def is_interactive(console: Console) -> bool:
    """Whether lines can be redrawn. Notebooks, log files and `--plain` get plain lines."""
    is_plain = bool(os.environ.get(PLAIN))
    return console.is_terminal and not (is_plain or console.is_jupyter or console.is_dumb_terminal)


def announce(text: str) -> None:
    """Print a message from a signal handler. It may interrupt a print, so this takes no lock and calls no console."""
    if _regions:
        _regions[-1].announce(text)
    else:
        os.write(2, f"\n{text}\n".encode())


@dataclass
class _Repeated:
    """A warning or note, shown when it first occurs and counted afterwards."""

    text: str
    count: int = 1
    first: int | None = None  # steps
    last: int | None = None


class ConsoleLogger:
    """On a terminal a live display, with warnings and notes above it; elsewhere one line per step."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or get_console()
        self.region: StatusRegion | None = None  # of the live display
        self.total = 0
        self._start: tuple[int, float] | None = None  # (step, time) at the start, to estimate the remaining time
        self._dropped: set[str] = set()  # columns for which the terminal is too narrow
        self._repeated: dict[str, _Repeated] = {}
        self._last_line = ""  # of the last step, if the live display showed its numbers

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self.total = run.total_steps
        done = resume_step or 0
        self._start = (done, time.monotonic())
        resumed = f", from step {done}" if done else ""
        steps = f"{self.total} step{'' if self.total == 1 else 's'}{resumed}"
        self._print(f"{run.project}/{run.name}: {steps}, in {short_path(run.folder)}", style="bold")
        if is_interactive(self.console):
            self.region = StatusRegion(RunStatus(self.total, done), self.console)
            self.region.start()
            _regions.append(self.region)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        validation = {name: value for name, value in metrics.items() if is_validation(name)}
        if not is_validation_only(metrics):
            line = self._line(step, metrics)
            if self.region is None or step >= self.total:
                self._print(line)
            self._last_line = line if self.region is not None and step < self.total else ""
        if self.region is not None:
            self.region.status.update(step, metrics)
        if validation:
            shown = [f"{name.partition('/')[2]} {value:.3f}" for name, value in sorted(validation.items())]
            self._print(_flow(f"validation at step {step}:", shown, line_width(self.console)), style="green")
        for kind, text in step_warnings(metrics).items():
            self._warn(kind, text, step)

    def _warn(self, kind: str, text: str, step: int) -> None:
        """Print a new warning; the live display also shows the last one."""
        if self._is_new(kind, text, step):
            self._print(f"step {step}: {text}", style="yellow")
        if self.region is not None:
            count = self._repeated[kind].count
            times = f" ({count} times)" if count > 1 else ""
            self.region.status.warning = printable(f"step {step}{times}: {text}").replace("\n", " ")

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._print(f"{name} at step {step}", style="bold")
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                text = str(value)
                text = text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]} ..."
                self._print(f"  {column}: " + text.replace("\n", "\n    "))  # no line of a model looks like one of ours
            self._print("")

    def note(self, text: str) -> None:
        if self._is_new(text, text):
            self._print(text, style="cyan")

    @contextmanager
    def activity(self, text: str) -> Iterator[Callable[[str], None]]:
        """Name on the live display what the run does now; without one as `activity`."""
        if self.region is None:
            with activity(text, console=self.console) as update:
                yield update
            return
        status = self.region.status
        status.label = text
        try:
            yield lambda text: setattr(status, "label", text)
        finally:
            status.label = LABEL

    def close(self) -> None:
        if self.region is not None:
            _regions.remove(self.region)
            self.region.stop()
            self.region = None
        if self._last_line:
            self._print(self._last_line)
            self._last_line = ""
        for repeated in self._repeated.values():
            if repeated.count > 1:
                steps = "" if repeated.first is None else f", steps {repeated.first} to {repeated.last}"
                self._print(f"{repeated.text} ({repeated.count} times{steps})", style="yellow")
        self._repeated = {}

    def _is_new(self, kind: str, text: str, step: int | None = None) -> bool:
        """Whether this warning was not shown yet; a repeated one is counted, and the count is shown at the end."""
        repeated = self._repeated.get(kind)
        if repeated is None:
            self._repeated[kind] = _Repeated(text, first=step, last=step)
            return True
        repeated.count, repeated.last = repeated.count + 1, step
        return False

    def _print(self, text: str, style: str | None = None) -> None:
        text = fit(printable(text), line_width(self.console))
        self.console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        """The step's numbers in one line; a narrow terminal leaves out the same columns in all lines."""
        parts = {"step": f"step {step}/{self.total}" if self.total else f"step {step}"}
        parts |= step_columns(metrics)
        left = self._seconds_left(step)
        if left is not None and self.region is None:
            parts["left"] = f"left {duration(left)}"
        return self._within_width(parts, spare=len(str(self.total)) - len(str(step)))

    def _within_width(self, parts: dict[str, str], spare: int) -> str:
        """`spare` columns stay free for the longer number of a later step."""
        width = line_width(self.console)
        for column in (None, *DROPPED_FIRST):
            if column is not None and column in parts:
                self._dropped.add(column)
            line = "  ".join(text for name, text in parts.items() if name not in self._dropped)
            if width is None or cell_len(line) + max(0, spare) <= width:
                break
        return line

    def _seconds_left(self, step: int) -> float | None:
        if self._start is None or step <= self._start[0] or step >= self.total:
            return None
        seconds_per_step = (time.monotonic() - self._start[1]) / (step - self._start[0])
        return seconds_per_step * (self.total - step)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(max(4, min(MAX_BAR, console.width - 52))),  # leaves 52 columns for the text around it
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
        transient=True,
    )


def _flow(label: str, items: Sequence[str], width: int | None) -> str:
    """Items in one line, or in several within the width; an item stays whole."""
    lines = [label]
    for number, item in enumerate(items):
        extended = f"{lines[-1]}{' ' if number == 0 else '  '}{item}"
        if width is None or cell_len(extended) <= width:
            lines[-1] = extended
        else:
            lines.append(f"  {item}")
    return "\n".join(lines)
