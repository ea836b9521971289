"""The file logger: metrics.jsonl and tables/ in the run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from burnish.folders import make_private
from burnish.log.jsonl import encode, read, write_atomically

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

METRICS = "metrics.jsonl"
NOTES = "notes.txt"
TABLES = "tables"


class FileLogger:
    """One line {"step": ..., "data": {...}} per step, written immediately; steps are unique, also after a resume.

    Lines that cannot be written because the disk is full are kept and written with the next one.
    """

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        self.folder = Path()
        self._last: tuple[int, dict[str, float]] | None = None  # step and metrics of the last line
        self._last_start = 0  # offset of that line, if it was written
        self._end = 0  # offset of the end of the last line written
        self._unwritten: list[bytes] = []  # lines that could not be written yet

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self.folder = run.folder
        make_private(self.folder)
        path = self.folder / METRICS
        if resume_step is None:
            _rename_existing(path)
        else:
            _drop_after(path, resume_step)
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for as long as the run lasts
        self._end = self.file.seek(0, os.SEEK_END)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the last step are merged into its line; any other step gets a new line."""
        if self.file is None:
            raise RuntimeError("the file logger is not started")
        data = dict(metrics)
        if self._last is not None and self._last[0] == step:
            data = self._last[1] | data
            if self._unwritten:
                self._unwritten.pop()
            else:
                self._end = self._last_start
        self._last = (step, data)
        line = encode({"step": step, "data": data}) + "\n"
        self._unwritten.append(line.encode("utf-8", errors="backslashreplace"))
        self._write(self.file)

    def _write(self, file: IO[bytes]) -> None:
        """Write all pending lines, after truncating what an earlier failed write left behind."""
        data = b"".join(self._unwritten)
        if file.seek(0, os.SEEK_END) > self._end:
            file.truncate(self._end)
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        self._last_start = self._end + len(data) - len(self._unwritten[-1])
        self._end += len(data)
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
                    self._write(self.file)
            finally:
                self.file.close()
                self.file = None


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """The metrics in a metrics.jsonl, by step."""
    steps: dict[int, dict[str, float]] = {}
    for line in read(path):
        # Non-finite numbers are stored as strings that float() parses.
        numbers = {name: float(value) for name, value in line["data"].items()}
        steps[line["step"]] = steps.get(line["step"], {}) | numbers
    return steps


def _rename_existing(path: Path) -> None:
    """Rename the metrics of an earlier run in the same folder to metrics.1.jsonl and so on."""
    if not path.exists() or path.stat().st_size == 0:
        return
    number = 1
    while (old := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(old)


def _drop_after(path: Path, step: int) -> None:
    """Drop the lines of steps that will be repeated, and an incomplete last line."""
    if path.exists():
        kept = [encode(line) + "\n" for line in read(path) if line["step"] <= step]
        write_atomically(path, "".join(kept))
