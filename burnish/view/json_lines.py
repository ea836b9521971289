"""JSON-lines files that another process still appends to: only new lines are read, and broken ones are skipped."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from burnish.errors import UserError
from burnish.untrusted import parse_json

MAX_LINE = 64 * 2**20  # bytes; a longer line is skipped


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading; OSError for anything else, without waiting for a FIFO's writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: not a regular file")
    return os.fdopen(descriptor, "rb")


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None where it is none, or broken."""
    try:
        value = parse_json(line.decode("utf-8", errors="replace"))
    except UserError:
        return None
    return value if isinstance(value, dict) else None


def read_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Offset and content of every complete line from the file's position on."""
    offset = file.tell()
    while line := file.readline(MAX_LINE):
        if line.endswith(b"\n"):
            yield offset, line
        elif len(line) < MAX_LINE:
            return  # the writer has not finished it
        offset += len(line)


class GrowingFile:
    """Reads the objects that were appended since the last call.

    The last line is read again every time, because a writer may replace it. `read` reports with its first result
    whether the file was replaced or cut, so that everything known about it must be forgotten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._last_line = 0  # offset

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """(replaced, new objects)."""
        try:
            file = open_regular(self.path)
        except OSError:
            replaced, self._identity, self._last_line = self._identity is not None, None, 0
            return replaced, []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            replaced = identity != self._identity or status.st_size < self._last_line
            if replaced:
                self._last_line = 0
            self._identity = identity
            file.seek(self._last_line)
            objects = []
            for offset, line in read_lines(file):
                self._last_line = offset
                entry = parse_object(line)
                if entry is not None:
                    objects.append(entry)
        return replaced, objects
