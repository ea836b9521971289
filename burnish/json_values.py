"""Python values as JSON that reads back as the same values: tuples stay tuples, bytes bytes, and keys may be numbers.

Lists, numbers, text, truth values, None and mappings with text keys are themselves in JSON; everything else is an
object with a single key that says what it is.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

TUPLE, MAPPING, NUMBER, BYTES, SET = "$tuple", "$mapping", "$float", "$bytes", "$set"
_MARK = "$"


def to_json(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """The JSON value. `other` converts what JSON cannot hold, or raises; TypeError without it."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {NUMBER: repr(value)}
    if isinstance(value, list):
        return [to_json(entry, other) for entry in value]
    if type(value) is tuple:
        return {TUPLE: [to_json(entry, other) for entry in value]}
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: to_json(entry, other) for key, entry in value.items()}
        return {MAPPING: [[to_json(key, other), to_json(entry, other)] for key, entry in value.items()]}
    if isinstance(value, bytes):
        return {BYTES: base64.b64encode(value).decode()}
    if isinstance(value, set | frozenset):
        return {SET: [to_json(entry, other) for entry in sorted(value, key=repr)]}
    if other is None:
        raise TypeError(f"a {type(value).__name__} cannot be saved")
    return other(value)


def from_json(value: Any, other: Callable[[str, Any], Any] | None = None) -> Any:
    """The Python value. `other(mark, content)` converts what the `other` of `to_json` wrote; ValueError without it."""
    if isinstance(value, list):
        return [from_json(entry, other) for entry in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value), "")
    if len(value) != 1 or not mark.startswith(_MARK):
        return {key: from_json(entry, other) for key, entry in value.items()}
    content = value[mark]
    if mark in _DECODERS:
        return _DECODERS[mark](from_json(content, other))
    if other is None:
        raise ValueError(f"unknown kind of value: {mark}")
    return other(mark, content)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    TUPLE: tuple,
    MAPPING: lambda pairs: {key: entry for key, entry in pairs},
    NUMBER: float,
    BYTES: base64.b64decode,
    SET: set,
}
