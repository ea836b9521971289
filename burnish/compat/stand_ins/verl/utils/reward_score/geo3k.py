"""Stand-in for verl.utils.reward_score.geo3k."""

from __future__ import annotations

from burnish.compat.shims.scores import geo3k as compute_score
from burnish.compat.shims.scores import geo3k_acc as acc_reward
from burnish.compat.shims.scores import geo3k_format as format_reward

__all__ = [
    "acc_reward",
    "compute_score",
    "format_reward",
]
