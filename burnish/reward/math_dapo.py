"""DAPO's math reward: compares the last "Answer: ..." line with the ground truth after Minerva's normalization."""

from __future__ import annotations

import re
from typing import Any

from burnish.reward.math import last_boxed
from burnish.reward.minerva import normalize, unit
from burnish.reward.units import units_differ

TAIL = 300  # characters at the end of a response that are searched for the answer
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def math_dapo(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score 1 or -1; `acc` is whether the answer is correct, `pred` is the normalized answer."""
    answers = _ANSWER.findall(solution_str[-TAIL:])
    answer = normalize(answers[-1]) if answers else ""
    truth = last_boxed(str(ground_truth)) or str(ground_truth)
    correct = bool(answer) and answer == normalize(truth) and not units_differ(unit(answers[-1]), unit(truth))
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": answer}
