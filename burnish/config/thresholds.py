"""Thresholds of rollout correction: one number, or two joined by an underscore (`0.5_2.0`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from burnish.errors import UserError

SECTION = "algorithm.rollout_correction"
IS_THRESHOLD = f"{SECTION}.rollout_is_threshold"
RS_THRESHOLD = f"{SECTION}.rollout_rs_threshold"
# Measures that are ratios, which also have a lower threshold.
RATIO_REJECTIONS = frozenset({"token_k1", "seq_sum_k1", "seq_mean_k1", "token", "sequence", "geometric"})


class Bounds(NamedTuple):
    """An upper bound and an optional lower one."""

    low: float | None
    high: float


def parse_bounds(text: str, key: str) -> Bounds:
    """Parse `2` or `0.5_2.0`: positive numbers, the lower first."""
    parts = str(text).split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    invalid = len(numbers) not in (1, 2) or not all(math.isfinite(n) and n > 0 for n in numbers)
    if invalid or numbers != sorted(numbers):
        raise UserError(
            "not a threshold",
            key=key,
            value=text,
            allowed="a number above 0, or two joined by an underscore, the lower first",
            hint=f"{key}=0.5_2.0",
        )
    return Bounds(numbers[0] if len(numbers) == 2 else None, numbers[-1])


def weight_bounds(threshold: str, lower: float | None) -> tuple[Bounds, bool]:
    """The bounds of importance weights, and whether weights outside are set to 0 (a pair) or clamped."""
    bounds = parse_bounds(threshold, IS_THRESHOLD)
    if lower is None:
        return bounds, bounds.low is not None
    key = f"{IS_THRESHOLD}_lower"
    if bounds.low is not None:
        problem = f"{IS_THRESHOLD}={threshold} already has a lower bound"
        raise UserError(problem, key=key, value=lower, hint=f"{IS_THRESHOLD}={bounds.high:g}")
    if lower > bounds.high:
        raise UserError(f"above {IS_THRESHOLD}", key=key, value=lower, allowed=f"<= {bounds.high:g}")
    return Bounds(lower, bounds.high), False


def rejection_bounds(
    measures: Sequence[str], thresholds: Sequence[str], lower: float | None
) -> Iterator[tuple[str, Bounds]]:
    """(measure, bounds) of each measure of rollout_rs; one threshold may apply to all."""
    measures, texts = list(dict.fromkeys(measures)), list(thresholds)
    if not measures:
        return
    if len(texts) not in (1, len(measures)):
        raise UserError(
            f"{len(measures)} measure(s) in {SECTION}.rollout_rs need one threshold each, or one for all",
            key=RS_THRESHOLD,
            value=texts,
            hint=f"{RS_THRESHOLD}={','.join('0.5_2.0' if name in RATIO_REJECTIONS else '2.0' for name in measures)}",
        )
    for measure, text in zip(measures, texts * len(measures) if len(texts) == 1 else texts, strict=True):
        bounds = parse_bounds(text, RS_THRESHOLD)
        if measure not in RATIO_REJECTIONS and bounds.low is not None:
            problem = f"{measure} is a distance and takes an upper threshold only"
            raise UserError(problem, key=RS_THRESHOLD, value=text, hint=f"{RS_THRESHOLD}={bounds.high:g}")
        if measure in RATIO_REJECTIONS and bounds.low is None:
            bounds = Bounds(lower, bounds.high)
        yield measure, bounds
