"""OutputLog: what reward functions print, in a file of the run folder with a limited size."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from burnish.escape import escape
from burnish.redact import redact_text

MAX_BYTES = 10 * 2**20  # of the file; when it is full it becomes FILE.1, in place of an older one


class OutputLog:
    """Appends text to a file, which exists only once something was printed. Thread-safe."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._mentioned = False
        self.written = False  # whether this run has written to it

    def write(self, title: str, text: str) -> None:
        """Append a title line and the text. A full disk must not stop the run, so the output is then dropped."""
        data = f"--- {title}\n{escape(redact_text(text))}\n".encode("utf-8", "replace")[-self._max_bytes :]
        with self._lock, contextlib.suppress(OSError):
            if self.path.exists() and self.path.stat().st_size + len(data) > self._max_bytes:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("ab") as file:
                file.write(data)
            self.written = True

    def take_notice(self) -> str | None:
        """A line about the file, once, after something was written."""
        with self._lock:
            if self._mentioned or not self.written:
                return None
            self._mentioned = True
        return f"the reward function prints; its output is in {self.path}"
