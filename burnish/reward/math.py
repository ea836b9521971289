r"""MATH: compares the last \boxed{...} of the response with the ground truth, both normalized.

The response is never evaluated: answers are compared as text and, if both are plain numbers, by value.
"""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_ANSWER_LENGTH = 2000  # longer texts are not answers, and slow to normalize
_BRACE_EVENTS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s${}\\]+)")

_SPACES = re.compile(r"(\\\\)|\s+|~|\\[,;:! ]|\\q?quad(?![a-zA-Z])")  # keeps \\, the row break of a matrix
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree(?![a-zA-Z])|°")
_TEXT = r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox|rm)\{([^{}]*)\}"
_UNIT = re.compile(rf"(.*\d.*){_TEXT}(?:\^\{{?\d\}}?)?$")  # 5\text{cm}^2, but not \text{even}
_WORDS = re.compile(_TEXT)
_NAMED = re.compile(r"^[a-zA-Z]{1,2}(?:\([a-zA-Z]\))?=(?=.)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])")
_SHORT_ROOT = re.compile(r"\\sqrt([^{\[\\])")
_SHORT_FRACTION = re.compile(r"\\frac(?:\{([^{}]*)\}|(\d|[a-zA-Z]|\\pi))(?:\{([^{}]*)\}|(\d|[a-zA-Z]))")
_SLASH = re.compile(r"^(-?)\(?(\d+)\)?/\(?(\d+)\)?$")
_BARE_POINT = re.compile(r"(?<!\d)\.(?=\d)")
_NUMBER = re.compile(r"([+-]?)(\d{1,100})(?:\.(\d{0,100}))?")
_RATIO = re.compile(r"([+-]?)(\d{0,100})\\frac\{([+-]?\d{1,100})\}\{(\d{1,100})\}")


def boxed_math(solution_str: str, ground_truth: str) -> float:
    r"""1 if the last \boxed answer is the ground truth, else 0."""
    answer = last_boxed(solution_str)
    if answer is None or len(answer) > _MAX_ANSWER_LENGTH:
        return 0.0
    truth = str(ground_truth)
    return float(same_answer(answer, last_boxed(truth) or truth))


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} whose braces balance, or of a later `\boxed 7`; None without either."""
    # One pass with a stack: searching for the end of each brace separately is quadratic on hostile text.
    opened: list[tuple[int, int] | None] = []
    start, content = -1, None
    for event in _BRACE_EVENTS.finditer(text):
        token = event.group()
        if token == "}":
            box = opened.pop() if opened else None
            if box is not None and box[0] > start:
                start, content = box[0], text[box[1] : event.start()]
        elif token == "{":
            opened.append(None)
        elif token.endswith("{") and len(token) > 2:
            opened.append((event.start(), event.end()))
    for bare in _BARE_BOX.finditer(text, max(start, 0)):
        if bare.start() > start:
            content = bare.group(1)
    return content


def same_answer(one: str, other: str) -> bool:
    """Whether two answers are equal as normalized text or as plain numbers."""
    one, other = normalize(one), normalize(other)
    if one == other:
        return True
    value = rational(one)
    return value is not None and value == rational(other)


def normalize(answer: str) -> str:
    r"""Normalize the spelling of an answer: spaces, \left, \dfrac12, units, degrees, percent, 1,000."""
    text = answer.strip().replace("−", "-").replace(r"\$", "").replace("$", "").replace(r"\%", "").replace("%", "")
    text = text.replace(r"\!", "")
    if not set("([") & set(text):  # (1,000) is a point, and "1, 000" with its space is a list
        text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    text = _FRACTIONS.sub(r"\\frac", _SIZES.sub("", text))
    text = _DEGREES.sub("", _SPACES.sub(r"\1", text)).rstrip(".")
    text = _WORDS.sub(r"\1", _UNIT.sub(r"\1", text))
    text = _NAMED.sub("", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _SHORT_FRACTION.sub(_full_fraction, text)
    text = _SLASH.sub(r"\1\\frac{\2}{\3}", text)
    text = _BARE_POINT.sub("0.", text).rstrip(".")
    choice = re.fullmatch(r"\(([a-zA-Z])\)", text)
    return choice.group(1) if choice else text.removeprefix("+")


def _full_fraction(match: re.Match[str]) -> str:
    top, short_top, bottom, short_bottom = match.groups()
    return rf"\frac{{{top or short_top}}}{{{bottom or short_bottom}}}"


def rational(text: str) -> Fraction | None:
    r"""The exact value of an integer, a decimal, \frac{a}{b} or a mixed number; None for anything else."""
    if number := _NUMBER.fullmatch(text):
        sign, whole, decimals = number.groups()
        value = Fraction(f"{whole}.{decimals or 0}")
        return -value if sign == "-" else value
    if ratio := _RATIO.fullmatch(text):
        sign, whole, top, bottom = ratio.groups()
        if int(bottom) == 0:
            return None
        value = int(whole or 0) + Fraction(int(top), int(bottom))
        return -value if sign == "-" else value
    return None
