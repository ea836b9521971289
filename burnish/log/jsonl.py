"""JSON lines on disk: strict JSON for any values that models or rewards return."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.escape import escape
from burnish.untrusted import parse_json


def plain(value: Any) -> Any:
    """Convert to JSON types. Non-finite numbers become "NaN", "Infinity" and "-Infinity", which float() parses."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    return str(value)


def encode(value: Any) -> str:
    """One line of JSON, without the newline. Characters that act on a terminal are escaped, others are readable."""
    try:  # as a rule there is nothing to convert, and a copy takes longer than the text
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)
    except (TypeError, ValueError):  # other keys than strings, or non-finite numbers
        text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    return escape(text)


def read(path: Path) -> Iterator[dict]:
    """The objects of a file. An incomplete last line, left by a killed process, is skipped."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parse_json(line, f"{path}, line {number}")
        except UserError as error:
            if number < len(lines):
                raise ValueError(error.problem) from error


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary file, then rename it, so that readers see either the old or the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # UTF-8 cannot encode lone surrogates; as backslash escapes they are valid JSON.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
