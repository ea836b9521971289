"""The live display of a run: a few lines at the bottom of a terminal, redrawn in place. Messages are printed above."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import ConsoleRenderable, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from burnish.escape import printable
from burnish.log.curves import sparkline
from burnish.log.step_format import duration, step_columns
from burnish.log.validation_score import ValidationScores, validation_score, validation_scores

if TYPE_CHECKING:
    from burnish.log.console import Console

MAX_WIDTH = 80  # a narrow region survives most changes of the window's width
MAX_LABEL = 24
BAR = (4, 40)  # columns
SPARKLINE = 16
MAX_METRIC_LINES = 3
SPARE = 3  # columns at the end: a terminal echoes ^C there, which must not wrap
# Set by terminals that wrap long lines anew when their width changes; others cut them off.
REFLOWING = ("VTE_VERSION", "KITTY_WINDOW_ID", "WT_SESSION", "TERM_PROGRAM", "TMUX", "KONSOLE_VERSION", "WEZTERM_PANE")
LABEL = "training"


class RunStatus:
    """Progress, key metrics and the last warning of a run, as lines of text."""

    def __init__(self, total: int, done: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.label = LABEL  # what the run does now
        self.step = done
        self.warning = ""
        self._now = now
        self._start = self._updated = now()
        self._first = done
        self._columns: dict[str, str] = {}
        self._curve: list[float] = []  # of the score, or of the loss
        self._validations: dict[int, Mapping[str, float]] = {}

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take over the metrics of a step, of a validation, or of both."""
        if validation_score(metrics) is not None:
            self._validations = self._validations | {step: metrics}
        if step > self.step:
            self.step, self._updated = step, self._now()
        columns = step_columns(metrics)
        if any(name in columns for name in ("score", "loss")):
            self._columns = columns
            value = metrics.get("critic/score/mean", metrics.get("train/loss", math.nan))
            self._curve = [*self._curve, value] if math.isfinite(value) else self._curve

    def seconds_left(self) -> float | None:
        """Estimated from the mean of the steps so far; None before the first and after the last."""
        steps = self.step - self._first
        if steps <= 0 or self.step >= self.total:
            return None
        per_step = (self._updated - self._start) / steps
        return max(0.0, per_step * (self.total - self.step) - (self._now() - self._updated))

    def lines(self, width: int, *, ascii_only: bool = False) -> list[Text]:
        """At most `width` columns each."""
        lines = [self._progress(width, ascii_only)]
        lines += [Text(f"  {line}") for line in _flow(self._metrics(ascii_only), width - 2)[:MAX_METRIC_LINES]]
        if self.warning:
            lines.append(Text(f"  {self.warning}", style="yellow"))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"  # for a window that has become narrower since
            if cell_len(line.plain) > width:
                line.truncate(max(0, width - 3), overflow="crop")
                line.append("..."[:width])
        return lines

    def _progress(self, width: int, ascii_only: bool) -> Text:
        count = f"{self.step}/{self.total}" if self.total else f"step {self.step}"
        times = duration(self._now() - self._start)
        left = self.seconds_left()
        times += "" if left is None else f"  left {duration(left)}"
        label = printable(self.label).replace("\n", " ")[:MAX_LABEL]
        room = width - cell_len(f"{label}   {count}  {times}")
        columns = max(BAR[0], min(BAR[1], room))
        filled = round(columns * min(self.step / self.total, 1.0)) if self.total else 0
        done, rest = ("#", "-") if ascii_only else ("━", "─")
        return Text.assemble(
            (f"{label} ", "bold"), (done * filled, "green"), (rest * (columns - filled), "dim"), f" {count}  {times}"
        )

    def _metrics(self, ascii_only: bool) -> list[str]:
        items = dict(self._columns)
        curve = self._curve
        if len(curve) > 1 and max(curve) > min(curve) and not ascii_only:
            name = "score" if "score" in items else "loss"
            items[name] += f" {sparkline(curve, min(curve), max(curve), SPARKLINE)}"
        validation = validation_scores(self._validations)
        first = [items.pop(name) for name in ("loss", "score") if name in items]
        return [*first, *([] if validation is None else [_validation(validation)]), *items.values()]


class StatusRegion(Live):
    """The status at the bottom of a terminal. `announce` may be called from a signal handler."""

    def __init__(self, status: RunStatus, console: Console) -> None:
        self.status = status
        self._announcements: deque[str] = deque()
        self._lines: list[Text] = []
        self._drawn: list[int] = []  # columns of the lines on the screen
        super().__init__(console=console, refresh_per_second=2, transient=True, get_renderable=self._render)

    def start(self, refresh: bool = True) -> None:
        super().start(refresh)
        self.console.show_cursor(True)  # a killed process would leave the terminal without one

    def announce(self, text: str) -> None:
        """Print a message above the region at the next refresh. Takes no lock."""
        self._announcements.append(text)

    def refresh(self) -> None:
        while self._announcements:
            self.console.print(self._announcements.popleft(), style="yellow")
        super().refresh()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        extra, width = 0, self.console.width
        if any(name in os.environ for name in REFLOWING):
            extra = sum(math.ceil(columns / width) - 1 for columns in self._drawn if columns > width)
        renderables = super().process_renderables(renderables)
        self._drawn = [cell_len(line.plain) for line in self._lines]
        if not extra:
            return renderables
        erase = (ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
        up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * extra
        return [Control(*erase, *up), *renderables]

    def _render(self) -> Group:
        options = self.console.options
        width = max(1, min(options.max_width, MAX_WIDTH) - SPARE)
        self._lines = self.status.lines(width, ascii_only=options.ascii_only)
        return Group(*self._lines)


def _validation(scores: ValidationScores) -> str:
    best = "" if scores.best_step == scores.last_step else f", best {scores.best:.3f}"
    return f"validation {scores.last:.3f} (step {scores.last_step}{best})"


def _flow(items: list[str], width: int) -> list[str]:
    """Items in lines of at most `width` columns; an item stays whole."""
    lines: list[str] = []
    for item in items:
        if lines and cell_len(f"{lines[-1]}  {item}") <= width:
            lines[-1] = f"{lines[-1]}  {item}"
        else:
            lines.append(item)
    return lines
