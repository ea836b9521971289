"""Text that fits the terminal: words wrap at its width, and a key or a path is never broken."""

from __future__ import annotations

import shutil
import textwrap

MAX_WIDTH = 100  # longer lines are hard to read


def terminal_width() -> int:
    """Columns of the terminal (80 if the output is none), up to a readable maximum."""
    return min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)


def wrap(text: str, indent: str = "", hanging: str | None = None) -> str:
    """Wrap at spaces only. Lines after the first start with `hanging` (default: `indent`)."""
    hanging = indent if hanging is None else hanging
    lines = text.splitlines() or [""]
    return "\n".join(_wrap_line(line, indent if not number else hanging, hanging) for number, line in enumerate(lines))


def _wrap_line(line: str, indent: str, hanging: str) -> str:
    wrapped = textwrap.wrap(
        line,
        max(20, terminal_width()),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped) or indent


def wrap_setting(setting: str, indent: str = "  ") -> str:
    """`key=value`, with the value on a line of its own where both do not fit on one."""
    separator = " " if setting.startswith("-") else "="
    name, found, value = setting.partition(separator)
    if len(indent) + len(setting) <= terminal_width() or not found:
        return f"{indent}{setting}"
    first = f"{indent}{name}{separator}".rstrip()
    return f"{first}\n{wrap(value, f'{indent}    ')}"
