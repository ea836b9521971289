"""The timeline of a run: when each phase of each step began and how long it took, for `burnish view`.

{run folder}/timeline.jsonl has one line per step: {"step": 3, "time": end of the step, "total_steps": 100,
"spans": [[phase, start, seconds], ...], "processes": {worker process: spans}}, in seconds since 1970. "spans" are the
main process's; a process on another machine goes by that machine's clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.log.jsonl import encode, read, write_atomically

NAME = "timeline.jsonl"
Span = tuple[str, float, float]  # phase, start in seconds since 1970, seconds


class Timeline:
    """Appends to the file. The first step of a process drops the lines of steps that it repeats."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_started = False

    def add(
        self, step: int, spans: Sequence[Span], total_steps: int, processes: Mapping[str, Sequence[Span]] | None = None
    ) -> None:
        if not self._is_started:
            self._start(step)
        line = {"step": step, "time": round(time.time(), 3), "total_steps": total_steps, "spans": _rounded(spans)}
        if processes:
            line["processes"] = {name: _rounded(own) for name, own in processes.items()}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(encode(line) + "\n")

    def _start(self, step: int) -> None:
        kept = [line for line in read(self.path) if line.get("step", step) < step] if self.path.exists() else []
        write_atomically(self.path, "".join(encode(line) + "\n" for line in kept))
        self._is_started = True


def _rounded(spans: Sequence[Span]) -> list[list[object]]:
    return [[name, round(start, 4), round(seconds, 4)] for name, start, seconds in spans]
