"""Coefficients of the step-time model, fitted to measured phases by bench/plan_fit.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from burnish.doctor.planner.coefficients import SHIPPED
from burnish.doctor.planner.features import AROUND, LAUNCH, Terms


@dataclass(frozen=True)
class Calibration:
    """Term -> how much longer than at peak, or seconds of one (features.py)."""

    coefficients: dict[str, float]
    eager: float  # of elementwise work where layers are not compiled
    origin: str  # what was measured, when and where
    error: dict[str, Any] = field(default_factory=dict)  # on setups that were not used

    def seconds(self, terms: Terms) -> float:
        return seconds_of(terms, self.coefficients)


def seconds_of(terms: Terms, coefficients: dict[str, float]) -> float:
    """The GPU's work, or the time in which the host launches it where that is longer; and what comes around it."""
    seconds = {term: coefficients[term] * amount for term, amount in terms.items()}
    around = sum(seconds.pop(term, 0.0) for term in AROUND)
    launching = seconds.pop(LAUNCH, 0.0)
    return around + max(launching, sum(seconds.values()))


@cache
def shipped() -> Calibration:
    return Calibration(**SHIPPED)
