r"""NuminaMath: the last \boxed{...} of the response, graded as a formula."""

from __future__ import annotations

from typing import Any

from burnish.reward.grader import same_value
from burnish.reward.math import last_boxed


def numina(solution_str: str, ground_truth: Any) -> float:
    r"""1 if the last \boxed answer equals the ground truth as text, number or formula; else 0."""
    answer = last_boxed(solution_str)
    truth = str(ground_truth)
    return float(answer is not None and same_value(answer, last_boxed(truth) or truth))
