from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from burnish.log.file import FileLogger, read_metrics
from burnish.log.jsonl import read
from burnish.log.logger import RunInfo


def started(folder: Path, resume_step: int | None = None) -> FileLogger:
    logger = FileLogger()
    logger.start(RunInfo("p", "n", folder, {}, 5), resume_step=resume_step)
    return logger


def test_a_line_is_on_disk_before_the_logger_is_closed(tmp_path):
    logger = started(tmp_path / "run")
    logger.log(1, {"a": 0.5, "b": math.nan})
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 1, "data": {"a": 0.5, "b": "NaN"}}
    numbers = read_metrics(tmp_path / "run" / "metrics.jsonl")[1]
    assert numbers["a"] == 0.5 and math.isnan(numbers["b"])
    logger.close()


def test_metrics_of_one_step_share_a_line(tmp_path):
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


def test_a_resume_drops_later_steps_and_a_cut_off_line(tmp_path):
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


def test_a_new_run_in_an_old_folder_keeps_the_old_numbers(tmp_path):
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
