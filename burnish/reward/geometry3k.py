r"""Geometry3K: 0.9 for the correct answer in \boxed{...}, 0.1 for the format."""

from __future__ import annotations

from typing import Any

from burnish.reward.numina import numina

_FORMAT_WEIGHT = 0.1


def geometry3k(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """0.9 x correct + 0.1 x format, both 0 or 1."""
    correct, formatted = numina(solution_str, ground_truth), float(is_formatted(solution_str))
    score = (1 - _FORMAT_WEIGHT) * correct + _FORMAT_WEIGHT * formatted
    return {"score": score, "acc": correct, "format": formatted}


def is_formatted(text: str) -> bool:
    r"""Whether the text starts with <think> and has a \boxed{...} after </think>."""
    thought, _, rest = text.partition("</think>")
    box = rest.find(r"\boxed{")
    return thought.startswith("<think>") and box >= 0 and "}" in rest[box:]
