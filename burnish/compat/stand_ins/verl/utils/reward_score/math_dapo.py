"""Stand-in for verl.utils.reward_score.math_dapo."""

from __future__ import annotations

from burnish.compat.shims.scores import math_dapo as compute_score
from burnish.compat.shims.scores import normalize_final_answer

__all__ = [
    "compute_score",
    "normalize_final_answer",
]
