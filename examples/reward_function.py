"""A custom reward function: correct answers score 1, plus an optional bonus for an explanation.

burnish train ... custom_reward_function.path=examples/reward_function.py \\
    custom_reward_function.reward_kwargs.explanation_bonus=0.1
"""

from __future__ import annotations

import re
from typing import Any


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    explanation_bonus: float = 0.0,
) -> dict[str, Any]:
    """Score one response. 'score' is the reward; other entries are logged with it."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", solution_str)
    answer = numbers[-1] if numbers else None
    correct = answer == str(ground_truth)
    explained = len(solution_str.split()) >= 5
    score = float(correct) + (explanation_bonus if correct and explained else 0.0)
    return {"score": score, "acc": correct, "pred": answer, "explained": explained}
