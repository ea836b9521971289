r"""Compare mathematical answers: as text first, then as formulas, within limits.

Both comparisons see the normalized answer, so that no answer has one value as text and another as a formula: `5\%` is
5, never 0.05. Responses are untrusted: answers that could take very long are rejected before they are parsed, and a
comparison that still takes too long counts as not equal.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from burnish.errors import UserError, install_extra
from burnish.reward.formula import Formula, NotAFormula, Parse, read_formula, same_formula
from burnish.reward.math import normalize, same_normalized

MAX_ANSWER_LENGTH = 400
_SECONDS = 1.0  # CPU time, so that results do not depend on the load of the machine
_MAX_DEPTH = 8  # levels of brackets: the parser's time grows exponentially with nested fractions
# Expressions whose value has very many digits: towers of powers, large exponents and factorials, long numbers.
_EXPLOSIVE = re.compile(
    r"\^\s*\{[^{}]*\^|\^\s*(?:\d+|\w)\s*\^|(?:[)}]\s*\^.*){4}|\^\s*\{?\s*[-+]?\d{4,}|\d{3,}\s*!|!\s*!|\d{60,}|\*\*"
    r"|\\(?:binom|choose)|__|[#\"`]|[^\x20-\x7e\n]"
)


_WORD = re.compile("[a-zA-Z]{3,}")


class _TooSlow(BaseException):
    """A BaseException, so that `except Exception` in libraries does not catch it."""


def check_installed() -> None:
    """Raise UserError if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("this reward requires math-verify", hint=install_extra("math"))


def same_value(answer: str, truth: str) -> bool:
    """Whether two answers are the same text, number or formula."""
    if max(len(answer), len(truth)) > MAX_ANSWER_LENGTH:
        return False
    one, other = normalize(answer), normalize(truth)
    if same_normalized(one, other):
        return True
    if not one.compatible(other):
        return False
    if _WORD.fullmatch(one.text):
        return one.text.casefold() == other.text.casefold()
    return is_cheap_to_parse(one.text) and is_cheap_to_parse(other.text) and _same_formula(one.text, other.text)


def is_cheap_to_parse(answer: str) -> bool:
    """Whether a formula is safe to parse and compare."""
    deepest = depth = 0
    for character in answer:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    balanced = depth == 0 and answer.count("{") == answer.count("}")
    return bool(answer.strip()) and balanced and deepest <= _MAX_DEPTH and _EXPLOSIVE.search(answer) is None


def _same_formula(answer: str, truth: str) -> bool:
    _library()  # outside of the time limit
    try:
        with _time_limit(_SECONDS):
            one, other = _read(truth), _read(answer)
            return one is not None and other is not None and same_formula(one, other)
    except (_TooSlow, Exception):  # a response that breaks the comparison is wrong, not a failure of the reward
        return False


@functools.lru_cache(maxsize=256)  # all responses to a prompt have the same ground truth
def _read(text: str) -> Formula | None:
    """None if the text is not a formula."""
    try:
        return read_formula(text, _library())
    except NotAFormula:
        return None


@functools.cache
def _library() -> Parse:
    """A reader of scalar expressions: math-verify's LaTeX parser, without its extraction and its guesses.

    It is called once here, so that initialization does not count towards the time limit of an answer.
    """
    check_installed()
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)

    def parse(text: str) -> Any:
        try:
            expression = latex2sympy(
                text, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=config
            )
        except Exception as error:  # of any class, for text that is not LaTeX
            raise NotAFormula(text) from error
        return expression

    same_formula(*(read_formula(formula, parse) for formula in (r"\frac{x^2+2x+1}{2}", r"\int_0^1xdx")))
    return parse


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
