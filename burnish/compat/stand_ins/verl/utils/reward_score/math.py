"""Stand-in for verl.utils.reward_score.math."""

from __future__ import annotations

from burnish.compat.shims.scores import (
    is_equiv,
    last_boxed_only_string,
    remove_boxed,
)
from burnish.compat.shims.scores import math as compute_score

__all__ = [
    "compute_score",
    "is_equiv",
    "last_boxed_only_string",
    "remove_boxed",
]
