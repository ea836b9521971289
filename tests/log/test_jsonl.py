from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.log.jsonl import encode, read, write_atomically


def test_everything_becomes_strict_json():
    value = {
        1: float("nan"),
        "inf": [float("inf"), -float("inf")],
        "numpy": np.float32(0.5),
        "array": np.array([1, 2]),
        "tensor": torch.tensor([[1.5]]),
        "path": Path("a/b"),
        "text": "漢",
        "flag": True,
        "none": None,
    }
    line = encode(value)
    assert "\n" not in line and "漢" in line
    assert json.loads(line, parse_constant=pytest.fail) == {
        "1": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "numpy": 0.5,
        "array": [1, 2],
        "tensor": [[1.5]],
        "path": "a/b",
        "text": "漢",
        "flag": True,
        "none": None,
    }


def test_a_line_separator_inside_a_text_does_not_end_a_line(tmp_path):
    path = tmp_path / "x.jsonl"
    write_atomically(path, encode({"text": "a\u2028b\nc"}) + "\n")
    assert list(read(path)) == [{"text": "a\u2028b\nc"}]


def test_an_incomplete_last_line_is_skipped_and_other_invalid_lines_are_errors(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    assert list(read(path)) == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read(path))


def test_writing_is_atomic_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "deep" / "x.txt"
    write_atomically(path, "one")
    write_atomically(path, "two \udc80")
    assert path.read_text(encoding="utf-8") == "two \\udc80"
    assert [entry.name for entry in path.parent.iterdir()] == ["x.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write_atomically(path, "old")

    def full_disk(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.log.jsonl.os.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.txt"]
