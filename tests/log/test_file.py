from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest

from burnish.log.file import FileLogger, read_metrics
from burnish.log.jsonl import read
from burnish.log.logger import RunInfo


def started(folder: Path, resume_step: int | None = None) -> FileLogger:
    logger = FileLogger()
    logger.start(RunInfo("p", "n", folder, {}, 5), resume_step=resume_step)
    return logger


def test_lines_are_written_immediately(tmp_path):
    logger = started(tmp_path / "run")
    logger.log(1, {"a": 0.5, "b": math.nan})
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 1, "data": {"a": 0.5, "b": "NaN"}}
    numbers = read_metrics(tmp_path / "run" / "metrics.jsonl")[1]
    assert numbers["a"] == 0.5 and math.isnan(numbers["b"])
    logger.close()


def test_metrics_of_one_step_are_merged(tmp_path):
    logger = started(tmp_path)
    logger.log(0, {"val": 1.0})
    logger.log(1, {"a": 123456.0, "b": 2.0})
    logger.log(1, {"a": 1.0, "c": 3.0})
    logger.log(2, {"a": 2.0})
    logger.close()
    lines = list(read(tmp_path / "metrics.jsonl"))
    assert lines == [
        {"step": 0, "data": {"val": 1.0}},
        {"step": 1, "data": {"a": 1.0, "b": 2.0, "c": 3.0}},
        {"step": 2, "data": {"a": 2.0}},
    ]


def test_a_resume_drops_later_steps_and_an_incomplete_line(tmp_path):
    logger = started(tmp_path)
    for step in (1, 2, 3, 4):
        logger.log(step, {"old": float(step)})
    logger.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 5, "da')
    logger = started(tmp_path, resume_step=2)
    logger.log(3, {"new": 3.0})
    logger.close()
    assert read_metrics(path) == {1: {"old": 1.0}, 2: {"old": 2.0}, 3: {"new": 3.0}}


def test_a_new_run_in_an_old_folder_keeps_the_old_metrics(tmp_path):
    for value in (1.0, 2.0, 3.0):
        logger = started(tmp_path)
        logger.log(1, {"a": value})
        logger.close()
    names = ("metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl")
    assert [read_metrics(tmp_path / name)[1]["a"] for name in names] == [3.0, 1.0, 2.0]


def test_tables_and_notes(tmp_path):
    logger = started(tmp_path)
    logger.table("val/generations", 10, ["input", "score"], [["a\nb", 1.0]])
    logger.note("one")
    logger.note("two")
    logger.close()
    assert list(read(tmp_path / "tables/val/generations/10.jsonl")) == [{"step": 10, "input": "a\nb", "score": 1.0}]
    assert (tmp_path / "notes.txt").read_text() == "one\ntwo\n"


def test_a_row_must_fit_its_columns(tmp_path):
    with pytest.raises(ValueError):
        started(tmp_path).table("t", 1, ["a", "b"], [["only one"]])


@pytest.fixture
def disk(monkeypatch):
    """disk(bytes): files may not grow beyond that many bytes; disk(None): there is room again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_are_retried_after_the_disk_was_full(tmp_path, disk):
    logger = started(tmp_path)
    logger.log(1, {"a": 1.0})
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    disk(len(whole) + 10)  # ten bytes of the next line fit
    for step in (2, 3):
        with pytest.raises(OSError):
            logger.log(step, {"a": float(step)})
    assert read_metrics(tmp_path / "metrics.jsonl") == {1: {"a": 1.0}}, "half a line is no line"
    with pytest.raises(OSError):
        logger.log(3, {"b": 3.5})
    disk(None)
    logger.log(4, {"a": 4.0})
    logger.log(4, {"b": 4.5})
    logger.close()
    lines = list(read(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[2]["data"] == {"a": 3.0, "b": 3.5} and lines[3]["data"] == {"a": 4.0, "b": 4.5}


def test_closing_writes_pending_lines(tmp_path, disk):
    logger = started(tmp_path)
    disk(0)
    with pytest.raises(OSError):
        logger.log(1, {"a": 1.0})
    disk(None)
    logger.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == {1: {"a": 1.0}}


def test_lines_of_earlier_steps_are_not_changed(tmp_path, monkeypatch):
    """A process killed while it writes a line has lost no other."""
    logger = started(tmp_path)
    logger.log(1, {"a": 1.0})
    seen = []
    write = logger.file.write

    class Watched:
        def __getattr__(self, name):
            return getattr(original, name)

        def write(self, text):
            seen.append((tmp_path / "metrics.jsonl").read_text())
            return write(text)

    original, logger.file = logger.file, Watched()
    logger.log(2, {"a": 2.0})
    assert seen == ['{"step": 1, "data": {"a": 1.0}}\n']
    logger.close()
