"""Stand-in for verl.utils.reward_score."""

from __future__ import annotations

from burnish.compat.shims.scores import default_compute_score

_default_compute_score = default_compute_score

__all__ = [
    "_default_compute_score",
    "default_compute_score",
]
