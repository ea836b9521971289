"""Console output: a progress bar on a terminal, plain lines elsewhere. All messages to the user are printed here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from burnish.log.step_warnings import step_warnings

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

# Columns of a step's line: (label, metric names of which the first present one is shown, format).
STEP_COLUMNS = (
    ("loss", ("train/loss",), "{:.4f}"),
    ("score", ("critic/score/mean",), "{:.3f}"),
    ("length", ("response_length/mean",), "{:.1f}"),
    ("kl", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"), "{:.2g}"),
    ("entropy", ("actor/entropy", "actor/entropy_loss"), "{:.3f}"),
    ("lr", ("actor/lr", "train/lr"), "{:.2g}"),
)
STEP_SECONDS = ("timing_s/step", "perf/time_per_step")
MAX_CELL = 300


@cache
def get_console() -> Console:
    """The shared console, without markup and highlighting."""
    console = Console(markup=False, emoji=False, highlight=False)
    # Wrap lines on a terminal only; log files are read by line.
    console.soft_wrap = not console.is_terminal
    return console


def say(text: str, style: str = "") -> None:
    """Print a message to the user."""
    get_console().print(text, style=style or None)


def say_error(text: str) -> None:
    """Print an error to standard error."""
    Console(stderr=True, markup=False, emoji=False, highlight=False).print(text, style="red", soft_wrap=True)


@contextmanager
def progress_counter(noun: str, total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number done: it updates a bar on a terminal and prints lines elsewhere."""
    output = console or get_console()
    if not is_interactive(output):
        yield lambda done: output.print(f"{done}/{total} {noun}")
        return
    with _bar(output) as bar:
        task = bar.add_task(noun, total=total)
        yield lambda done: bar.update(task, completed=done)


def is_interactive(console: Console) -> bool:
    """Whether a progress bar can be shown. Notebooks and log files get plain lines."""
    return console.is_terminal and not console.is_jupyter and not console.is_dumb_terminal


class ConsoleLogger:
    """One line per step, warnings, and on a terminal a progress bar with the remaining time."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or get_console()
        self.progress: Progress | None = None
        self.total = 0
        self._start: tuple[int, float] | None = None  # (step, time) at the start, to estimate the remaining time

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self.total = run.total_steps
        done = resume_step or 0
        self._start = (done, time.monotonic())
        resumed = f", from step {done}" if done else ""
        self._print(f"{run.project}/{run.name}: {self.total} steps{resumed}, in {run.folder}", style="bold")
        if is_interactive(self.console):
            progress = _bar(self.console)
            progress.add_task("step", total=self.total or None, completed=done)
            progress.start()
            self.progress = progress

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        validation = {name: value for name, value in metrics.items() if name.startswith(("val-core/", "val/"))}
        if not all(name.startswith(("val-core/", "val-aux/", "val/", "timing_s/testing")) for name in metrics):
            self._print(self._line(step, metrics))
        if validation:
            shown = "  ".join(f"{name.partition('/')[2]} {value:.3f}" for name, value in sorted(validation.items()))
            self._print(f"validation at step {step}: {shown}", style="green")
        for text in step_warnings(metrics):
            self._print(f"step {step}: {text}", style="yellow")
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=step)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._print(f"{name} at step {step}", style="bold")
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                text = str(value)
                self._print(f"  {column}: {text if len(text) <= MAX_CELL else text[:MAX_CELL] + ' ...'}")
            self._print("")

    def note(self, text: str) -> None:
        self._print(text, style="cyan")

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, highlight=False, emoji=False)

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        parts = [f"step {step}/{self.total}" if self.total else f"step {step}"]
        for label, names, template in STEP_COLUMNS:
            value = _first(metrics, names)
            if value is not None:
                parts.append(f"{label} {template.format(value)}")
        seconds = _first(metrics, STEP_SECONDS)
        if seconds is not None:
            parts.append(f"{seconds:.1f} s")
        if "perf/throughput" in metrics:
            parts.append(f"{_short(metrics['perf/throughput'])} tok/s")
        left = self._seconds_left(step)
        if left is not None and self.progress is None:
            parts.append(f"left {_duration(left)}")
        return "  ".join(parts)

    def _seconds_left(self, step: int) -> float | None:
        if self._start is None or step <= self._start[0] or step >= self.total:
            return None
        seconds_per_step = (time.monotonic() - self._start[1]) / (step - self._start[0])
        return seconds_per_step * (self.total - step)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
        transient=True,
    )


def _first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _short(number: float) -> str:
    """12345 -> 12.3k"""
    if not math.isfinite(number) or abs(number) < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if abs(number) < 1e6 else f"{number / 1e6:.1f}M"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
