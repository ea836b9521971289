"""Stand-in for verl.utils.reward_score.search_r1_like_qa_em."""

from __future__ import annotations

from burnish.compat.shims.scores import em_check, normalize_answer
from burnish.compat.shims.scores import search_r1 as compute_score
from burnish.compat.shims.scores import search_r1_answer as extract_solution

__all__ = [
    "compute_score",
    "em_check",
    "extract_solution",
    "normalize_answer",
]
