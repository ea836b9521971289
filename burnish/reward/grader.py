r"""Compare mathematical answers: as text first, then with math-verify, within limits.

Responses are untrusted: answers that could take very long are rejected before the library parses them, and a comparison
that still takes too long counts as not equal.
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

MAX_ANSWER_LENGTH = 400
_SECONDS = 1.0  # CPU time, so that results do not depend on the load of the machine
_MAX_DEPTH = 6  # levels of braces: the parser's time grows exponentially with nested fractions
# Expressions whose value has very many digits: towers of powers, large exponents and factorials, long numbers.
_EXPLOSIVE = re.compile(
    r"\^\s*\{[^{}]*\^|\^\s*\w+\s*\^|(?:[)}]\s*\^.*){4}|\^\s*\{?\s*[-+]?\d{4,}|\d{3,}\s*!|!\s*!|\d{60,}|\*\*"
    r"|\\(?:binom|choose)|__|[#\"`]|[^\x20-\x7e\n]"
)


class _TooSlow(BaseException):
    """A BaseException, so that `except Exception` in libraries does not catch it."""


def check_installed() -> None:
    """Raise UserError if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("this reward requires math-verify", hint="pip install burnish[math]")


def same_value(answer: str, truth: str) -> bool:
    """Whether two answers are the same text, number or formula."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return False
    if same_answer(answer, truth):
        return True
    return is_cheap_to_parse(answer) and is_cheap_to_parse(truth) and _same_formula(answer, truth)


def is_cheap_to_parse(answer: str) -> bool:
    """Whether a formula is safe to parse and compare."""
    deepest = depth = 0
    for character in answer:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return bool(answer.strip()) and depth == 0 and deepest <= _MAX_DEPTH and _EXPLOSIVE.search(answer) is None


def _same_formula(answer: str, truth: str) -> bool:
    parse, verify = _library()
    try:
        with _time_limit(_SECONDS):
            return bool(verify(parse(truth), parse(answer)))
    except (_TooSlow, RecursionError):
        return False


@functools.cache
def _library() -> tuple[Callable[[str], Any], Callable[[Any, Any], bool]]:
    """`parse` and `verify` of math-verify, without its time limits, which would disarm the worker's alarm.

    Both are called once here, so that initialization does not count towards the time limit of an answer.
    """
    check_installed()
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log a warning for every answer that is not a formula
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]

    def parse_formula(text: str) -> Any:
        return parse(f"${text}$", extraction_config=configs, parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    def verify_formulas(gold: Any, target: Any) -> bool:
        return verify(gold, target, timeout_seconds=None)

    for formula in (r"\frac{x^2+2x+1}{2}", r"\int_0^1 x dx"):
        verify_formulas(parse_formula(formula), parse_formula(r"\frac{(x+1)^2}{2}"))
    return parse_formula, verify_formulas


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooSlow in the block after `seconds` of CPU time. Main thread only, where workers call rewards."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    handler = signal.signal(signal.SIGVTALRM, on_alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, handler)
