"""Comparing what a program gave with what it should give. Both may be long, and one of them is a stranger's."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_DECIMAL = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NEAR = 1e-6  # absolute, or relative to the larger of two numbers
_NUMBER_LONGEST = 64


def same_text(given: str, expected: str) -> bool:
    """Equal line by line; white space at line ends and empty lines at the end aside, decimal numbers by value."""
    ours, theirs = _lines(given), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same_line(given: str, expected: str) -> bool:
    if given == expected:
        return True
    ours, theirs = given.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(given: str, expected: str) -> bool:
    """A number has to be near only where a decimal one is expected: 3 is not 3.0000001."""
    if given == expected:
        return True
    if not _is_number(expected, _DECIMAL) or not (_is_number(given, _DECIMAL) or _is_number(given, _INTEGER)):
        return False
    return _near(float(given), float(expected))


def _is_number(text: str, form: re.Pattern[str]) -> bool:
    return len(text) <= _NUMBER_LONGEST and form.fullmatch(text) is not None


def _near(given: float, expected: float) -> bool:
    return math.isclose(given, expected, rel_tol=_NEAR, abs_tol=_NEAR)


def same_result(stdout: str, expected: Any) -> bool:
    """Is the last line of `stdout` this value as JSON? A list of one also matches the one, as APPS writes it."""
    last = stdout.rstrip().rpartition("\n")[2]
    try:
        given = json.loads(last)
    except (ValueError, RecursionError):
        return False
    try:
        wrapped = isinstance(expected, list) and len(expected) == 1
        return _same_value(given, expected) or (wrapped and _same_value(given, expected[0]))
    except RecursionError:
        return False


def _same_value(given: Any, expected: Any) -> bool:
    if isinstance(expected, bool) or isinstance(given, bool):
        return given is expected
    if isinstance(expected, float) and isinstance(given, int | float):
        try:
            return _near(float(given), expected)
        except OverflowError:
            return False
    if isinstance(expected, list) and isinstance(given, list):
        return len(given) == len(expected) and all(map(_same_value, given, expected))
    if isinstance(expected, dict) and isinstance(given, dict):
        return given.keys() == expected.keys() and all(_same_value(given[name], expected[name]) for name in given)
    return type(given) is type(expected) and given == expected
