"""Text of others on a terminal: control, escape and direction characters are shown, not obeyed.

Model outputs, rewards, servers, datasets and file names may contain characters that move the cursor, recolor or hide
text, set the window's title, or reverse the reading direction. `escape` writes them as JSON does (`\\u001b`), so that
printed JSON stays what it was. Output passes through it in two places that no caller can forget: the console
(log/console.py) and, in processes of our own, standard output and standard error (`escape_output`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from burnish.redact import hide_values

# Controls but tab and newline, marks and overrides of direction, line separators, invisible characters, tags and
# surrogates. Joiners (U+200C, U+200D) stay: words and emoji are written with them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_PROGRESS_BAR = re.compile("(\r|\x1b\\[A)")  # what tqdm moves the cursor with


def escape(text: str) -> str:
    r"""The text with characters that would act on a terminal as \u escapes; newlines and tabs stay."""
    return _UNSAFE.sub(_escaped, text)


def printable(text: str) -> str:
    """The text as it may be printed: escaped, and without secrets."""
    return escape(hide_values(text))


def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


class EscapedStream:
    """A text stream whose output is printable. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich writes here: our console escapes its texts and adds colors

    def write(self, text: str) -> int:
        caller = sys._getframe().f_back  # None while the interpreter prints its last traceback
        if caller is not None and caller.f_globals.get("__name__", "").startswith("tqdm"):
            parts = _PROGRESS_BAR.split(text)
            self.rich_proxied_file.write("".join(part if i % 2 else printable(part) for i, part in enumerate(parts)))
        else:
            self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def escape_output() -> None:
    """Escape what this process prints from now on, tracebacks and the warnings of libraries included."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, EscapedStream):
            setattr(sys, name, EscapedStream(stream))


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape what is printed inside."""
    before = sys.stdout, sys.stderr
    escape_output()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
