r"""Are two mathematical answers equal? As text first, then through math-verify, within bounds.

A response is hostile text: what could take for ever is screened out before the library sees it, and what still takes
too long counts as not equal.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from burnish.errors import UserError
from burnish.reward.math import same_answer

LONGEST_ANSWER = 400
_SECONDS = 1.0  # of computing, so that a busy machine grades as an idle one
_DEEPEST = 6  # of nested braces: the parser's time grows exponentially with nested fractions
# Numbers that would have to be written out: towers of powers, exponents and factorials of many digits, long numbers.
_EXPLOSIVE = re.compile(
    r"\^\s*\{[^{}]*\^|\^\s*\w+\s*\^|(?:[)}]\s*\^.*){4}|\^\s*\{?\s*[-+]?\d{4,}|\d{3,}\s*!|!\s*!|\d{60,}|\*\*"
    r"|\\(?:binom|choose)|__|[#\"`]|[^\x20-\x7e\n]"
)


class _TooSlow(BaseException):
    """Not an Exception, so that a library's own `except Exception` lets it through."""


def check_installed() -> None:
    """UserError unless math-verify can be imported."""
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("this reward compares formulas with math-verify", hint="pip install burnish[math]")


def same_value(answer: str, truth: str) -> bool:
    """Are both the same text, the same number, or the same formula?"""
    if len(answer) > LONGEST_ANSWER:
        return False
    if same_answer(answer, truth):
        return True
    return is_tame(answer) and is_tame(truth) and _same_formula(answer, truth)


def is_tame(answer: str) -> bool:
    """Can a formula be parsed and compared without much work?"""
    deepest = depth = 0
    for character in answer:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return bool(answer.strip()) and depth == 0 and deepest <= _DEEPEST and _EXPLOSIVE.search(answer) is None


def _same_formula(answer: str, truth: str) -> bool:
    parse, verify = _library()
    try:
        with _time_limit(_SECONDS):
            return bool(verify(parse(truth), parse(answer)))
    except (_TooSlow, RecursionError):
        return False


@functools.cache
def _library() -> tuple[Callable[[str], Any], Callable[[Any, Any], bool]]:
    """`parse` and `verify` of math-verify, with its own time limits off: those disarm the worker's alarm.

    Both have been used once: what a library does at its first use must not count as an answer's time.
    """
    check_installed()
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn of every answer that is no formula
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]

    def parsed(text: str) -> Any:
        return parse(f"${text}$", extraction_config=configs, parsing_timeout=None)

    def verified(gold: Any, target: Any) -> bool:
        return verify(gold, target, timeout_seconds=None)

    for formula in (r"\frac{x^2+2x+1}{2}", r"\int_0^1 x dx"):
        verified(parsed(formula), parsed(r"\frac{(x+1)^2}{2}"))
    return parsed, verified


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooSlow inside the block after `seconds`. Only a main thread can; a worker's function runs in one."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    handler = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, handler)
