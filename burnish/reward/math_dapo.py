"""DAPO's maths: the last "Answer: ..." line, compared with the ground truth as text after Minerva's normalisation."""

from __future__ import annotations

import re
from typing import Any

from burnish.reward.math import last_boxed
from burnish.reward.minerva import normalise

TAIL = 300  # characters at the end of a response in which the answer stands
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def math_dapo(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score 1 or -1; `acc` says whether the answer is right, `pred` is the answer as it was read."""
    answer = last_answer(solution_str)
    right = answer is not None and answer == normalise(_bare(str(ground_truth)))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer or ""}


def last_answer(text: str) -> str | None:
    """The normalised answer of the last "Answer:" line; None without one."""
    found = _ANSWER.findall(text[-TAIL:])
    return normalise(found[-1]) if found else None


def _bare(truth: str) -> str:
    return last_boxed(truth) or truth
