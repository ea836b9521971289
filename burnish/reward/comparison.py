"""Compare the output of a program with the expected output. The output is untrusted and may be long."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_DECIMAL = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TOLERANCE = 1e-6  # absolute, or relative to the larger of two numbers
_MAX_NUMBER_LENGTH = 64


def same_text(actual: str, expected: str) -> bool:
    """Whether all lines are equal, ignoring white space and empty lines at the end; decimals compare by value."""
    actual_parts, expected_parts = _lines(actual), _lines(expected)
    return len(actual_parts) == len(expected_parts) and all(map(_same_line, actual_parts, expected_parts))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same_line(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    actual_parts, expected_parts = actual.split(), expected.split()
    return len(actual_parts) == len(expected_parts) and all(map(_same_word, actual_parts, expected_parts))


def _same_word(actual: str, expected: str) -> bool:
    """Numbers compare approximately only if the expected one is a decimal: 3 is not 3.0000001."""
    if actual == expected:
        return True
    if not _is_number(expected, _DECIMAL) or not (_is_number(actual, _DECIMAL) or _is_number(actual, _INTEGER)):
        return False
    return _is_close(float(actual), float(expected))


def _is_number(text: str, pattern: re.Pattern[str]) -> bool:
    return len(text) <= _MAX_NUMBER_LENGTH and pattern.fullmatch(text) is not None


def _is_close(actual: float, expected: float) -> bool:
    return math.isclose(actual, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def same_result(stdout: str, expected: Any) -> bool:
    """Whether the last line of `stdout` is this JSON value. A list of one also matches its entry, as in APPS."""
    last = stdout.rstrip().rpartition("\n")[2]
    try:
        actual = json.loads(last)
    except (ValueError, RecursionError):
        return False
    try:
        wrapped = isinstance(expected, list) and len(expected) == 1
        return _same_value(actual, expected) or (wrapped and _same_value(actual, expected[0]))
    except RecursionError:
        return False


def _same_value(actual: Any, expected: Any) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return actual is expected
    if isinstance(expected, float) and isinstance(actual, int | float):
        try:
            return _is_close(float(actual), expected)
        except OverflowError:
            return False
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(_same_value, actual, expected))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(_same_value(actual[name], expected[name]) for name in actual)
    return type(actual) is type(expected) and actual == expected
