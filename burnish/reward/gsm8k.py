"""GSM8K: the number after the last `####`, or the last number, compared with the ground truth."""

from __future__ import annotations

import re
from typing import Any

from burnish.errors import UserError
from burnish.registry import Registry

_TAIL = 300  # an answer stands at the end; looking at no more keeps a long response cheap
_NUMBER = r"-?\$?-?\d[\d,]*(?:\.\d+)?"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)

METHODS = Registry("way to find the answer", key="custom_reward_function.reward_kwargs.method")


@METHODS.register("strict")
def last_marked_number(text: str) -> str | None:
    """The number after the last `####`."""
    found = _MARKED.findall(text)
    return found[-1] if found else None


@METHODS.register("flexible")
def last_number(text: str) -> str | None:
    """The last number, wherever it stands."""
    found = _ANY.findall(text)
    return found[-1] if found else None


def gsm8k(solution_str: str, ground_truth: Any, method: str = "strict") -> float:
    """1 if the answer in the last 300 characters equals the ground truth, commas and dollar signs aside; else 0."""
    if method not in METHODS:
        raise UserError("no such way to find the answer", key=METHODS.key, value=method, allowed=METHODS.names())
    answer = METHODS[method].load()(solution_str[-_TAIL:])
    return float(answer is not None and _bare(answer) == _bare(str(ground_truth)))


def _bare(number: str) -> str:
    return number.replace(",", "").replace("$", "").strip()
