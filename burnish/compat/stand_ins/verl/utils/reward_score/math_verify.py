"""Stand-in for verl.utils.reward_score.math_verify."""

from __future__ import annotations

from burnish.compat.shims.scores import math_verify as compute_score

__all__ = [
    "compute_score",
]
