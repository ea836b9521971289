"""Stand-in for verl.utils.reward_score.gsm8k."""

from __future__ import annotations

from burnish.compat.shims.scores import gsm8k as compute_score
from burnish.compat.shims.scores import gsm8k_answer as extract_solution

__all__ = [
    "compute_score",
    "extract_solution",
]
