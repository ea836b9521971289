r"""Geometry3K: nine tenths for the right answer in \boxed{...}, one tenth for thinking before it."""

from __future__ import annotations

from typing import Any

from burnish.reward.numina import numina

_FORMAT_SHARE = 0.1


def geometry3k(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """0.9 x right answer + 0.1 x format, both 0 or 1."""
    right, formatted = numina(solution_str, ground_truth), float(is_formatted(solution_str))
    score = (1 - _FORMAT_SHARE) * right + _FORMAT_SHARE * formatted
    return {"score": score, "acc": right, "format": formatted}


def is_formatted(text: str) -> bool:
    r"""Does it begin with <think>, and has it a \boxed{...} after </think>?"""
    thought, _, rest = text.partition("</think>")
    box = rest.find(r"\boxed{")
    return thought.startswith("<think>") and box >= 0 and "}" in rest[box:]
