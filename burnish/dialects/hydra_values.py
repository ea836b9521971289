"""Formatting of values as Hydra overrides that parse back to exactly the same value."""

from __future__ import annotations

import re
from typing import Any

# Text that Hydra accepts unquoted. Anything else, and text that Hydra would parse as another type, is quoted.
_UNQUOTED = re.compile(r"[A-Za-z_./][\w./:@-]*")
_KEYWORDS = ("true", "false", "null", "nan", "inf")


def format_hydra_value(value: Any) -> str:
    """null, true, 1e-09, text, 'quoted text', [1,2], {name:value}."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_hydra_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{format_hydra_value(entry)}" for key, entry in value.items()) + "}"
    return _format_text(value) if isinstance(value, str) else repr(value)


def _format_text(value: str) -> str:
    if _UNQUOTED.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = re.search(r"\\*$", escaped)
    return f"'{escaped}{trailing.group() if trailing else ''}'"
