"""GSM8K: the number after the last `####`, or the last number, compared with the ground truth."""

from __future__ import annotations

import re
from typing import Any

from burnish.errors import UserError
from burnish.registry import Registry

_TAIL = 300  # only the end is searched, to limit the cost of long responses
_NUMBER = r"-?\$?-?[0-9][0-9,]*(?:\.[0-9]+)?"  # `\d` would accept digits of other scripts
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?,?")
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)

METHODS = Registry("answer extraction method", key="custom_reward_function.reward_kwargs.method")


@METHODS.register("strict")
def last_marked_number(text: str) -> str | None:
    """The number after the last `####`."""
    numbers = _MARKED.findall(text)
    return numbers[-1] if numbers else None


@METHODS.register("flexible")
def last_number(text: str) -> str | None:
    """The last number in the text."""
    numbers = _ANY.findall(text)
    return numbers[-1] if numbers else None


def gsm8k(solution_str: str, ground_truth: Any, method: str = "strict") -> float:
    """1 if the answer in the last 300 characters is the ground truth, but for thousands separators and `$`; else 0."""
    if method not in METHODS:
        raise UserError("unknown answer extraction method", key=METHODS.key, value=method, allowed=METHODS.names())
    answer = METHODS[method].load()(solution_str[-_TAIL:])
    return float(answer is not None and _bare(answer) == _bare(str(ground_truth)))


def _bare(number: str) -> str:
    """Without dollar signs and the commas of thousands. Other commas separate numbers: 1,2 is not 12."""
    bare = number.replace("$", "").strip()
    return bare.replace(",", "") if _THOUSANDS.fullmatch(bare) else bare.rstrip(",")
