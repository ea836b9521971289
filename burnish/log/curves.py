"""Plot the metrics of a run as a PNG, or one metric as text for a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.escape import escape
from burnish.log.file import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# (title, axis label, metrics). A name that ends in / is a prefix. A panel without any curve is omitted.
PANELS = (
    ("Score", "mean score", ("critic/score/mean", "val-core/")),
    ("Response length", "tokens", ("response_length/mean", "response_length/max")),
    ("Entropy of the policy", "nats per token", ("actor/entropy",)),
    ("KL divergence", "nats per token", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl")),
    ("Loss", "loss", ("actor/pg_loss", "critic/vf_loss", "train/loss", "val/loss")),
    ("Time per step", "seconds", ("timing_s/",)),
)
LABELS = {
    "critic/score/mean": "training",
    "response_length/mean": "mean",
    "response_length/max": "longest",
    "actor/entropy": "entropy",
    "actor/kl_loss": "to the reference (in the loss)",
    "actor/reward_kl_penalty": "to the reference (in the reward)",
    "actor/ppo_kl": "to the policy before the update",
    "actor/pg_loss": "policy",
    "critic/vf_loss": "critic",
    "train/loss": "training",
    "val/loss": "validation",
    "timing_s/step": "whole step",
    "timing_s/gen": "generation",
    "timing_s/old_log_prob": "old log-probs",
    "timing_s/ref": "reference log-probs",
    "timing_s/update_actor": "policy update",
    "timing_s/update_critic": "critic update",
    "timing_s/testing": "validation",
    "timing_s/save_checkpoint": "checkpoint",
}
ZERO_IS_EMPTY = ("actor/ppo_kl", "timing_s/")  # a curve of zeros tells nothing here; of a score it does
MAX_LINES = 6  # per panel, the largest first
MIN_SHARE = 0.05  # of the panel's largest value; smaller times are not legible
MAX_LABEL = 60
MIN_SMOOTHED = 20  # points from which a curve is smoothed
LEVELS = " ▁▂▃▄▅▆▇█"

Curve = list[tuple[int, float]]  # (step, value), finite


def draw_curves(metrics: str | Path, out: str | Path) -> list[str]:
    """Plot the panels for which a metrics.jsonl has metrics; returns their titles. Writes no file if there are none."""
    steps = read_metrics(Path(metrics))
    present = sorted({name for numbers in steps.values() for name in numbers if not name.endswith("/std")})
    panels = []
    for title, unit, patterns in PANELS:
        names = [name for pattern in patterns for name in present if _matches(name, pattern)]
        curves = {name: curve for name in names if (curve := _curve(name, steps))}
        if curves:
            panels.append((title, unit, _largest(curves, MIN_SHARE if patterns == ("timing_s/",) else 0.0)))
    if panels:
        _draw(panels, Path(out))
    return [title for title, _, _ in panels]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or (pattern[-1] == "/" and name.startswith(pattern))


def _curve(name: str, steps: dict[int, dict[str, float]]) -> Curve:
    points = [(step, numbers[name]) for step, numbers in sorted(steps.items()) if name in numbers]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    is_zero = not any(value for _, value in points)
    return [] if is_zero and any(_matches(name, pattern) for pattern in ZERO_IS_EMPTY) else points


def _largest(curves: dict[str, Curve], min_share: float) -> dict[str, Curve]:
    """At most MAX_LINES curves, those with the largest values, in the given order."""
    sizes = {name: max(abs(value) for _, value in curve) for name, curve in curves.items()}
    limit = min_share * max(sizes.values())
    kept = sorted((name for name in sizes if sizes[name] >= limit), key=lambda name: -sizes[name])[:MAX_LINES]
    return {name: curve for name, curve in curves.items() if name in kept}


def _draw(panels: list[tuple[str, str, dict[str, Curve]]], out: Path) -> None:
    # Not pyplot, which would change the global state of a notebook that plots its own figures.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 6)  # the panels of a short last row share its width
    for number, (title, unit, curves) in enumerate(panels):
        row, column = divmod(number, columns)
        width = 6 // min(columns, len(panels) - row * columns)
        axis = figure.add_subplot(grid[row, column * width : (column + 1) * width])
        _panel(axis, title, unit, curves)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png", dpi=110)


def _panel(axis: Axes, title: str, unit: str, curves: dict[str, Curve]) -> None:
    most = max(map(len, curves.values()))
    for number, (name, curve) in enumerate(curves.items()):
        steps, values = [step for step, _ in curve], [value for _, value in curve]
        is_rare = len(curve) == 1 or 2 * len(curve) < most  # such as validation: points, and no claim between them
        style: dict[str, Any] = {"color": f"C{number}", "linewidth": 2}
        style |= {"marker": "o", "markersize": 6} if is_rare else {}
        style |= {"linestyle": "none" if name.startswith("timing_s/") else ":"} if is_rare else {}
        if len(curve) >= MIN_SMOOTHED:
            axis.plot(steps, values, color=f"C{number}", linewidth=0.8, alpha=0.25)
            values = smoothed(values)
        axis.plot(steps, values, label=_label(name), **style)
    axis.set_title(title, fontsize=15, fontweight="bold")
    axis.set_xlabel("step", fontsize=12)
    axis.set_ylabel(unit, fontsize=12)
    axis.tick_params(labelsize=11)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1 or _label(next(iter(curves))) not in title.lower():
        columns = 2 if len(curves) > 2 else len(curves)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=columns, fontsize=11, frameon=False)


def _label(name: str) -> str:
    """A readable name; the metric's own where there is none."""
    name = escape(name)[:MAX_LABEL].replace("$", r"\$")  # names of datasets are not mathematics to typeset
    if name.startswith("val-core/"):
        return f"validation: {name.removeprefix('val-core/')}"
    return LABELS.get(name) or name.removeprefix("timing_s/").replace("_", " ")


def smoothed(values: Sequence[float]) -> list[float]:
    """Centered means over a tenth of the curve; at the ends, over the part of the window that exists."""
    half = max(1, len(values) // 20)
    windows = (values[max(0, place - half) : place + half + 1] for place in range(len(values)))
    return [sum(window) / len(window) for window in windows]


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
