"""Lease: when the machine will be taken away, and whether another step still fits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import UserError

# Where elastic clusters say when an instance ends, in seconds since 1970.
VARIABLES = (
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)
FIRST_SAVE = 60.0  # seconds a save may take, as long as none was measured


@dataclass
class Lease:
    """`ends` None is a machine of one's own. The longest step and save so far say what the next may take."""

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
            problem = f"the environment says {name}={environment[name]!r}, which is no time in seconds since 1970"
            raise UserError(problem, hint=f"unset {name}") from None

    def measured(self, timings: Mapping[str, float]) -> None:
        """Times of a step, as the clock has them."""
        self.longest_step = max(self.longest_step, timings.get("timing_s/step", 0.0))
        self.longest_save = max(self.longest_save, timings.get("timing_s/save_checkpoint", 0.0))

    def runs_out(self) -> bool:
        """Might one more step and the save after it come too late?"""
        if self.ends is None:
            return False
        return time.time() + self.longest_step + (self.longest_save or FIRST_SAVE) + self.spare >= self.ends
