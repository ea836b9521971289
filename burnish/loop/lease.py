"""Lease: when the machine will be reclaimed, and whether another step still fits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import UserError

# Environment variables of elastic clusters: when the instance ends, in seconds since 1970.
VARIABLES = (
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)
FIRST_SAVE = 60.0  # assumed seconds of a save before the first one is measured


@dataclass
class Lease:
    """`ends` None: no limit. The longest step and save so far predict the next."""

    ends: float | None
    spare: float
    longest_step: float = 0.0
    longest_save: float = 0.0

    @staticmethod
    def of(spare: float, environment: Mapping[str, str] = os.environ) -> Lease:
        name = next((name for name in VARIABLES if environment.get(name)), None)
        if name is None:
            return Lease(None, spare)
        try:
            return Lease(float(environment[name]), spare)
        except ValueError:
            problem = f"environment variable {name}={environment[name]!r} is not a time in seconds since 1970"
            raise UserError(problem, hint=f"unset {name}") from None

    def measured(self, timings: Mapping[str, float]) -> None:
        """Note the timings of a step."""
        self.longest_step = max(self.longest_step, timings.get("timing_s/step", 0.0))
        self.longest_save = max(self.longest_save, timings.get("timing_s/save_checkpoint", 0.0))

    def runs_out(self) -> bool:
        """Whether another step and its checkpoint might not finish in time."""
        if self.ends is None:
            return False
        return time.time() + self.longest_step + (self.longest_save or FIRST_SAVE) + self.spare >= self.ends
