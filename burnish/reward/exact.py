"""Exact match: the whole response is the answer."""

from __future__ import annotations

from typing import Any


def exact(solution_str: str, ground_truth: Any) -> float:
    """1 if the response equals the ground truth, ignoring leading and trailing white space; else 0."""
    return float(solution_str.strip() == str(ground_truth).strip())
