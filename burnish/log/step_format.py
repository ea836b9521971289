"""A step's numbers as text: the labels, metrics and formats that step lines and the live display share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# (label, metric names of which the first present one is shown, format)
STEP_COLUMNS = (
    ("loss", ("train/loss",), "{:.4f}"),
    ("score", ("critic/score/mean",), "{:.3f}"),
    ("length", ("response_length/mean",), "{:.1f}"),
    ("kl", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"), "{:.2g}"),
    ("entropy", ("actor/entropy", "actor/entropy_loss"), "{:.3f}"),
    ("lr", ("actor/lr", "train/lr"), "{:.2g}"),
)
STEP_SECONDS = ("timing_s/step", "perf/time_per_step")


def step_columns(metrics: Mapping[str, float]) -> dict[str, str]:
    """Column -> its text, such as `score 0.531`, for the metrics that are present."""
    columns = {}
    for label, names, template in STEP_COLUMNS:
        value = first_present(metrics, names)
        if value is not None:
            columns[label] = f"{label} {template.format(value)}"
    seconds = first_present(metrics, STEP_SECONDS)
    if seconds is not None:
        columns["seconds"] = f"{seconds:.1f} s"
    if "perf/throughput" in metrics:
        columns["throughput"] = f"{short_number(metrics['perf/throughput'])} tok/s"
    return columns


def is_validation_only(metrics: Mapping[str, float]) -> bool:
    """Whether these metrics are those of a validation, without a training step."""
    return all(name.startswith(("val-core/", "val-aux/", "val/", "timing_s/")) for name in metrics)


def first_present(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def short_number(number: float) -> str:
    """12345 -> 12.3k"""
    if not math.isfinite(number) or abs(number) < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if abs(number) < 1e6 else f"{number / 1e6:.1f}M"


def duration(seconds: float) -> str:
    """75 -> 1:15"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
