"""The file logger: metrics.jsonl and tables/ in the run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from burnish.log.jsonl import encode, read, write_atomically

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

METRICS = "metrics.jsonl"
NOTES = "notes.txt"
TABLES = "tables"


class FileLogger:
    """One line {"step": ..., "data": {...}} per step, written out at once; steps are unique, also after a resume.

    Lines that a full disk does not take are kept and come with the next one.
    """

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        self.folder = Path()
        self._last: tuple[int, dict[str, float]] | None = None  # the step of the last line, and its metrics
        self._begins = 0  # where that line begins, if it is on the disk
        self._end = 0  # and where the last line on the disk ends
        self._unwritten: list[bytes] = []  # lines that the disk did not take

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self.folder = run.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / METRICS
        if resume_step is None:
            _move_aside(path)
        else:
            _forget_after(path, resume_step)
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for as long as the run lasts
        self._end = self.file.seek(0, os.SEEK_END)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the step written last join its line; any other step gets a new line."""
        if self.file is None:
            raise RuntimeError("the file logger is not started")
        data = dict(metrics)
        if self._last is not None and self._last[0] == step:
            data = self._last[1] | data
            if self._unwritten:
                self._unwritten.pop()
            else:
                self._end = self._begins
        self._last = (step, data)
        line = encode({"step": step, "data": data}) + "\n"
        self._unwritten.append(line.encode("utf-8", errors="backslashreplace"))
        self._write()

    def _write(self) -> None:
        """All that is not on the disk; what an earlier try left half-written goes first."""
        text = b"".join(self._unwritten)
        if self.file.seek(0, os.SEEK_END) > self._end:
            self.file.truncate(self._end)
        done = 0
        while done < len(text):
            done += self.file.write(text[done:])
        self._begins = self._end + len(text) - len(self._unwritten[-1])
        self._end += len(text)
        self._unwritten = []

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """tables/<name>/<step>.jsonl, one object per row."""
        lines = [encode({"step": step} | dict(zip(columns, row, strict=True))) + "\n" for row in rows]
        write_atomically(self.folder / TABLES / name / f"{step}.jsonl", "".join(lines))

    def note(self, text: str) -> None:
        with open(self.folder / NOTES, "a", encoding="utf-8", errors="backslashreplace") as notes:
            notes.write(text + "\n")

    def close(self) -> None:
        if self.file is not None:
            try:
                if self._unwritten:
                    self._write()
            finally:
                self.file.close()
                self.file = None


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """What a metrics.jsonl holds, by step."""
    steps: dict[int, dict[str, float]] = {}
    for line in read(path):
        # Not-finite numbers are stored as words, which float() reads.
        numbers = {name: float(value) for name, value in line["data"].items()}
        steps[line["step"]] = steps.get(line["step"], {}) | numbers
    return steps


def _move_aside(path: Path) -> None:
    """A new run in an old folder keeps the old numbers, as metrics.1.jsonl and so on."""
    if not path.exists() or path.stat().st_size == 0:
        return
    number = 1
    while (old := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(old)


def _forget_after(path: Path, step: int) -> None:
    """Drop the lines of steps that will be made again, and a line that was cut off."""
    if path.exists():
        kept = [encode(line) + "\n" for line in read(path) if line["step"] <= step]
        write_atomically(path, "".join(kept))
