"""Plot the metrics of a run as a PNG, or one metric as text for a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.log.file import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# (title, metrics). Panels without any of their metrics are omitted. A name that ends in / is a prefix.
PANELS = (
    ("score", ("critic/score/mean", "val-core/")),
    ("response length", ("response_length/mean", "response_length/max")),
    ("entropy", ("actor/entropy",)),
    ("KL", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl")),
    ("loss", ("actor/pg_loss", "critic/vf_loss", "train/loss", "val/loss")),
    ("seconds", ("timing_s/",)),
)
LEVELS = " ▁▂▃▄▅▆▇█"


def draw_curves(metrics: str | Path, out: str | Path) -> list[str]:
    """Plot the panels for which a metrics.jsonl has metrics; returns their titles. Writes no file if there are none."""
    steps = read_metrics(Path(metrics))
    present = sorted({name for numbers in steps.values() for name in numbers if not name.endswith("/std")})
    panels = []
    for title, patterns in PANELS:
        names = [
            name
            for pattern in patterns
            for name in present
            if name == pattern or (pattern[-1] == "/" and name.startswith(pattern))
        ]
        if names:
            panels.append((title, names))
    if panels:
        _draw(panels, steps, Path(out))
    return [title for title, _ in panels]


def _draw(panels: list[tuple[str, list[str]]], steps: dict[int, dict[str, float]], out: Path) -> None:
    # Not pyplot, which would change the global state of a notebook that plots its own figures.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.5 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (title, names) in zip(axes, panels, strict=False):
        _panel(axis, title, names, steps)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png", dpi=110)


def _panel(axis: Axes, title: str, names: list[str], steps: dict[int, dict[str, float]]) -> None:
    for name in names:
        points = [(step, numbers[name]) for step, numbers in sorted(steps.items()) if name in numbers]
        # Mark single points, which have no line, and validation, which is rare.
        marker = "o" if len(points) == 1 or name.startswith("val") else None
        axis.plot([step for step, _ in points], [value for _, value in points], label=name, marker=marker, markersize=3)
    axis.set_title(title)
    axis.set_xlabel("step")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=6)


def sparkline(values: Sequence[float], low: float, high: float, width: int = 24) -> str:
    """A curve in one line of block characters, scaled from `low` to `high`."""
    steps = len(LEVELS) - 2
    shares = [(value - low) / (high - low) for value in _downsample([float(value) for value in values], width)]
    return "".join(LEVELS[1 + round(min(max(share, 0.0), 1.0) * steps)] for share in shares)


def terminal_curve(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """A curve in block characters, labeled with its maximum and minimum. Non-finite values are skipped."""
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return ""
    columns = _downsample(finite, width)
    low, high = min(columns), max(columns)
    steps = len(LEVELS) - 1
    # In eighths of a cell, at least one, so that the lowest value is visible.
    span = high - low
    filled = [1 if span == 0 else 1 + round((value - low) / span * (height * steps - 1)) for value in columns]
    label = max(len(_number(low)), len(_number(high)))
    lines = []
    for row in reversed(range(height)):
        cells = "".join(LEVELS[min(max(count - row * steps, 0), steps)] for count in filled)
        side = _number(high) if row == height - 1 else _number(low) if row == 0 else ""
        lines.append(f"{side:>{label}} ┤{cells}".rstrip())
    return "\n".join(lines)


def _downsample(values: list[float], width: int) -> list[float]:
    """At most `width` values, as means of neighbors."""
    if len(values) <= width:
        return values
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _number(value: float) -> str:
    return f"{value:.3g}"
