"""JSON lines on disk: strict JSON that any reader takes, whatever a model or a reward put in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON can hold it. Not-finite numbers become "NaN", "Infinity" and "-Infinity", which float() reads."""
    if isinstance(value, bool | int | str) or value is None:
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
    """One line of JSON, without its end."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def read(path: Path) -> Iterator[dict]:
    """The objects of a file. A last line cut off by a killed process is not there yet, so it is left out."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write beside the file, then rename: a reader sees the old text or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A lone surrogate cannot be UTF-8; as a backslash escape it is still valid JSON.
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
