"""One number for a validation, and the last and best of a run's validations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

LOSS = "val/loss"  # of supervised fine-tuning; the lower, the better


class ValidationScores(NamedTuple):
    """The last and the best validation of a run."""

    last_step: int
    last: float
    best_step: int
    best: float

    def __str__(self) -> str:
        return f"last {self.last:.4g} (step {self.last_step}), best {self.best:.4g} (step {self.best_step})"


def is_validation(name: str) -> bool:
    """Whether a metric is one of the main metrics of a validation."""
    return name.startswith(("val-core/", "val/"))


def validation_score(metrics: Mapping[str, float]) -> float | None:
    """The mean of val-core/*/mean@N over data sources, or val/loss; None without a validation."""
    if LOSS in metrics:
        return metrics[LOSS]
    means = [value for name, value in metrics.items() if name.startswith("val-core/") and "/mean@" in name]
    return fmean(means) if means else None


def validation_scores(steps: Mapping[int, Mapping[str, float]]) -> ValidationScores | None:
    """The last and best score of the metrics by step; of equal ones the first is the best. None without any."""
    scores = {step: score for step in sorted(steps) if (score := validation_score(steps[step])) is not None}
    if not scores:
        return None
    last = max(scores)
    sign = -1 if LOSS in steps[last] else 1
    finite = [step for step, score in scores.items() if not math.isnan(score)] or [last]
    best = max(finite, key=lambda step: sign * scores[step])
    return ValidationScores(last, scores[last], best, scores[best])
