"""Journals of conversations: what was sampled and what tools and environments answered, written before it is used.

{run folder}/journal/{step}.jsonl and validation-{step}.jsonl have one line per event; pictures that tools and
environments returned are PNG files in a folder beside it, written before the line that refers to them. A run that was
killed reads the files of the steps that it repeats: it calls no tool again that had answered, and samples no turn
again. A checkpoint makes the files of its steps obsolete.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.log.jsonl import encode, read
from burnish.loop.experiment import Experiment
from burnish.loop.pictures import with_pictures, with_references
from burnish.rollout.episode import INTERRUPTED, NO_JOURNAL, Journal

FOLDER = "journal"


class FileJournal:
    """Appends a line per event; a line is written whole, by one call, before its value is used."""

    def __init__(self, path: Path, experiment: Experiment | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._pictures = picture_folder(path)
        self._recorded = _read(path, experiment)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not self._recorded:
            os.ftruncate(self._file, 0)
            self._write({"experiment": None if experiment is None else experiment.state_dict()})

    def find(self, key: str) -> dict[str, Any] | None:
        recorded = self._recorded.get(key)
        return recorded if recorded is None or recorded is INTERRUPTED else with_pictures(recorded, self._pictures)

    def begin(self, key: str) -> None:
        self._write({"key": key})

    def add(self, key: str, value: dict[str, Any]) -> None:
        self._write({"key": key, "value": with_references(value, self._pictures)})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        text = f"{encode(line)}\n".encode(errors="backslashreplace")
        while text:
            text = text[os.write(self._file, text) :]


def picture_folder(journal: Path) -> Path:
    return journal.with_suffix(".pictures")


def _read(path: Path, experiment: Experiment | None) -> dict[str, dict[str, Any]]:
    """What a killed process recorded; nothing of another experiment."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1  # half a line must not grow into a whole one
    if complete < len(content):
        os.truncate(path, complete)
    lines = iter(read(path))
    saved = next(lines, {}).get("experiment")
    if experiment is not None and (saved is None or experiment.changes(saved)[0]):
        return {}
    return {line["key"]: line.get("value", INTERRUPTED) for line in lines}


@dataclass(frozen=True)
class Journals:
    """The journal files of a run. Without a folder, nothing is journaled."""

    folder: Path | None = None
    experiment: Experiment | None = None  # a journal of another experiment is not read

    @contextmanager
    def open(self, name: str) -> Iterator[Journal]:
        """The journal of a step, such as "12" or "validation-12"."""
        if self.folder is None:
            yield NO_JOURNAL
            return
        journal = FileJournal(self.folder / f"{name}.jsonl", self.experiment)
        try:
            yield journal
        finally:
            journal.close()

    def clear(self) -> None:
        """Remove all journals: the run starts anew."""
        self.drop_until(sys.maxsize)

    def drop_until(self, step: int) -> None:
        """Remove the journals of this step and of earlier ones: a checkpoint has what they led to."""
        for path in [] if self.folder is None or not self.folder.is_dir() else list(self.folder.glob("*.jsonl")):
            number = path.stem.removeprefix("validation-")
            if number.isdigit() and int(number) <= step:
                path.unlink(missing_ok=True)
                shutil.rmtree(picture_folder(path), ignore_errors=True)
