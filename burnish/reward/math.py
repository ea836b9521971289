r"""MATH: compares the last \boxed{...} of the response with the ground truth, both normalized.

The response is never evaluated: answers are compared as text and, if both are plain numbers, by value.

Normalization never joins two numbers: what it removes between two digits leaves a space, so `1 2`, `1\,2` and `1%2`
are not 12. A unit and the name of the unknown may be left out, but two different ones are two answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from burnish.reward.units import units_differ

_MAX_ANSWER_LENGTH = 2000  # longer texts are not answers, and slow to normalize
_BRACE_EVENTS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s${}\\]+)")

# Digits are ASCII: `\d` would also accept those of other scripts, and int() would convert them.
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:,\\!|\{,\}|,|\\,)[0-9]{3})+(?![0-9,]|\\[,!])")
_REMOVED = re.compile(  # leaves a space; `\\`, the row break of a matrix, stays
    r"(\\\\)|(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\?\$)+"
)
_PERCENT = re.compile(r"\\?%")
_DEGREES = re.compile(r"\^ *\{? *\\circ *\}?|\\degree(?![a-zA-Z])|°")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_TEXT = r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox|rm) ?\{([^{}]*)\}"
_WORDS = re.compile(_TEXT)
_UNIT = re.compile(rf"{_TEXT} *(?:\^ *\{{?[0-9]\}}?)?[ .]*\Z")  # 5\text{cm}^2
_UNIT_NAME = re.compile(r"[a-zA-Z ./'-]*")
_ONE_LETTER_UNITS = frozenset("msghLlJNWVAKCFt")  # 3\mathrm{i} is a number, 3\mathrm{m} a length
_NO_UNITS = frozenset({"or", "and", "to", "not", "if", "for"})
_BETWEEN = re.compile(r" *,? *(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z]) *")
_NAMED = re.compile(r"([a-zA-Z]{1,2}(?:\([a-zA-Z]\))?)(?:=|\\in(?![a-zA-Z]))(?=.)")
_SPACE = re.compile(r"(\\[a-zA-Z]+ )(?=[a-zA-Z])|(?<=[0-9.])( )(?=[0-9.])| ")  # \sin x and 1 2 keep theirs
_SHORT_ROOT = re.compile(r"\\sqrt([^{\[\\])")
_SHORT_FRACTION = re.compile(r"\\frac(?:\{([^{}]*)\}|([0-9]|[a-zA-Z]|\\pi)) ?(?:\{([^{}]*)\}|([0-9]|[a-zA-Z]))")
_SLASH = re.compile(r"(-?)\(?([0-9]+)\)?/\(?([0-9]+)\)?")
_BARE_POINT = re.compile(r"(?<![0-9])\.(?=[0-9])")
_NUMBER = re.compile(r"([+-]?)([0-9]{1,100})(?:\.([0-9]{0,100}))?")
_RATIO = re.compile(r"([+-]?)([0-9]{0,100})\\frac\{([+-]?[0-9]{1,100})\}\{([0-9]{1,100})\}")


def boxed_math(solution_str: str, ground_truth: str) -> float:
    r"""1 if the last \boxed answer is the ground truth, else 0."""
    answer = last_boxed(solution_str)
    truth = str(ground_truth)
    return float(answer is not None and same_answer(answer, last_boxed(truth) or truth))


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


@dataclass(frozen=True)
class Answer:
    """A normalized answer. `x = 5 cm` has the text 5, the name x and the unit cm; the latter two are often omitted."""

    text: str
    name: str = ""
    unit: str = ""

    def compatible(self, other: Answer) -> bool:
        """Whether names and units agree; one that is left out agrees with every other."""
        same_name = self.name == other.name or not (self.name and other.name)
        return same_name and not units_differ(self.unit, other.unit)


def same_answer(one: str, other: str) -> bool:
    """Whether two answers are equal as normalized text or as plain numbers."""
    if max(len(one), len(other)) > _MAX_ANSWER_LENGTH:
        return False
    return same_normalized(normalize(one), normalize(other))


def same_normalized(one: Answer, other: Answer) -> bool:
    if not one.compatible(other):
        return False
    if one.text == other.text:
        return bool(one.text)
    value = rational(one.text)
    return value is not None and value == rational(other.text)


def normalize(answer: str) -> Answer:
    r"""Normalize the spelling of an answer: spaces, \left, \dfrac12, units, degrees, percent, 1,000."""
    text = answer.replace("−", "-")
    if not set("([") & set(text):  # (1,000) is a point, and "1, 000" with its space is a list
        text = _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match.group()), text)
    text, unit = _without_unit(_REMOVED.sub(lambda match: match[1] or " ", text).strip())
    text = re.sub(" +", " ", _WORDS.sub(r" \1 ", text))
    parts = _BETWEEN.split(text)
    if all(re.search("[0-9]", part) for part in parts):  # "3 or 4", but not "true or false"
        text = ",".join(parts)
    text = _SPACE.sub(lambda match: match[1] or match[2] or "", text.strip()).rstrip(".")
    text, name = _without_name(text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _FRACTIONS.sub(r"\\frac", text))
    text = _SHORT_FRACTION.sub(_full_fraction, text)
    if ratio := _SLASH.fullmatch(text):
        text = rf"{ratio[1]}\frac{{{ratio[2]}}}{{{ratio[3]}}}"
    text = _BARE_POINT.sub("0.", text).rstrip(".")
    choice = re.fullmatch(r"\(([a-zA-Z])\)", text)
    return Answer(choice.group(1) if choice else text.removeprefix("+"), name, unit)


def _without_unit(text: str) -> tuple[str, str]:
    r"""The text before a unit (`\text{...}` behind something with a digit, degrees, percent), and the unit."""
    start = max(text.rfind("\\text"), text.rfind("\\m"), text.rfind("\\rm"))
    match = _UNIT.match(text, start) if start >= 0 else None
    if match and re.search("[0-9]", text[:start]) and _is_unit(match[1].strip()):
        return text[:start], match[1]
    for unit, pattern in (("degree", _DEGREES), ("percent", _PERCENT)):
        bare = pattern.sub(" ", text)
        if bare != text:
            return bare, unit
    return text, ""


def _is_unit(name: str) -> bool:
    if len(name) == 1:
        return name in _ONE_LETTER_UNITS
    return _UNIT_NAME.fullmatch(name) is not None and not _NO_UNITS.intersection(name.lower().split())


def _without_name(text: str) -> tuple[str, str]:
    """The value of `x=5`, or the values of `x=5,x=6`, and the name."""
    match = _NAMED.match(text)
    if match is None:
        return text, ""
    values = text[match.end() :].split(f",{match[0]}")
    if any("=" in value for value in values):
        return text, ""  # several names, or a chain of equations
    return ",".join(values), match[1]


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
