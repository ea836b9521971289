"""DAPO's math reward: compares the last "Answer: ..." line with the ground truth after Minerva's normalization."""

from __future__ import annotations

import re
from typing import Any

from burnish.reward.math import last_boxed
from burnish.reward.minerva import normalize

TAIL = 300  # characters at the end of a response that are searched for the answer
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def math_dapo(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score 1 or -1; `acc` is whether the answer is correct, `pred` is the normalized answer."""
    answer = last_answer(solution_str)
    correct = answer is not None and answer == normalize(_bare(str(ground_truth)))
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": answer or ""}


def last_answer(text: str) -> str | None:
    """The normalized answer of the last "Answer:" line; None without one."""
    answers = _ANSWER.findall(text[-TAIL:])
    return normalize(answers[-1]) if answers else None


def _bare(truth: str) -> str:
    return last_boxed(truth) or truth
