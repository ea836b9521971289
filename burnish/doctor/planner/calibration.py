"""Coefficients of the step-time model, fitted to measured phases by bench/plan_fit.py."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from burnish.doctor.planner.features import Terms

FILE = Path(__file__).with_name("calibration.json")


@dataclass(frozen=True)
class Calibration:
    """Term -> how much longer than at peak, or seconds of one (features.py)."""

    coefficients: dict[str, float]
    eager: float  # of elementwise work where layers are not compiled
    origin: str  # what was measured, when and where
    error: dict[str, Any] = field(default_factory=dict)  # on setups that were not used

    def seconds(self, terms: Terms) -> float:
        return sum(self.coefficients[term] * amount for term, amount in terms.items())


@cache
def shipped() -> Calibration:
    return Calibration(**json.loads(FILE.read_text(encoding="utf-8")))
