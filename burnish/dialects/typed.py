"""A value as a Hydra override that reads back as exactly the same value."""

from __future__ import annotations

import re
from typing import Any

# Text that Hydra takes as it stands; anything else, and what it would read as a number or a word, is quoted.
_PLAIN = re.compile(r"[A-Za-z_./][\w./:@-]*")
_WORDS = ("true", "false", "null", "nan", "inf")


def typed(value: Any) -> str:
    """null, true, 1e-09, text, 'quoted text', [1,2], {name:value}."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{typed(entry)}" for key, entry in value.items()) + "}"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = re.search(r"\\*$", escaped)
    return f"'{escaped}{trailing.group() if trailing else ''}'"
