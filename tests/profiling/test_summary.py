"""Summaries of traces: what took longest, phases, idle share; files of others are read with care."""

import gzip
import json

import pytest

from burnish.errors import UserError
from burnish.profiling.summary import covered, summarize


def event(name, cat, start, seconds, tid=1, **more):
    return {"ph": "X", "name": name, "cat": cat, "ts": start * 1e6, "dur": seconds * 1e6, "pid": 1, "tid": tid, **more}


def written(path, events):
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_operators_count_without_those_they_call(tmp_path):
    events = [
        event("step", "user_annotation", 0, 10),
        event("module: Linear", "user_annotation", 0, 4),
        event("aten::linear", "cpu_op", 0, 4),
        event("aten::mm", "cpu_op", 1, 3),
        event("aten::add", "cpu_op", 2, 4, tid=2),
        {"ph": "i", "name": "[memory]", "ts": 3},
    ]
    summary = summarize(written(tmp_path / "t.json.gz", events))
    assert (summary.kind, summary.seconds, summary.phases) == ("operators", 10.0, {"step": 10.0})
    assert [(entry.name, entry.seconds, entry.calls) for entry in summary.top] == [
        ("aten::add", 4.0, 1),
        ("aten::mm", 3.0, 1),
        ("aten::linear", 1.0, 1),
    ]
    assert summary.idle_share == pytest.approx(0.4)


def test_kernels_come_before_operators(tmp_path):
    events = [
        event("gen", "user_annotation", 0, 4),
        event("aten::mm", "cpu_op", 0, 4),
        event("gemm", "kernel", 1, 1, tid=7),
        event("gemm", "kernel", 1.5, 1, tid=8),
    ]
    summary = summarize(written(tmp_path / "t.json.gz", events), top=1)
    assert (summary.kind, [entry.name for entry in summary.top]) == ("kernels", ["gemm"])
    assert summary.top[0].calls == 2 and summary.idle_share == pytest.approx(1 - 1.5 / 4)


def test_overlapping_spans_count_once():
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)]) == 4.0


def test_an_empty_trace(tmp_path):
    assert summarize(written(tmp_path / "t.json.gz", [])).top == []


def test_events_of_another_form_are_ignored(tmp_path):
    events = [7, {"ph": "X"}, event("x", "cpu_op", 0, 1, tid=None), event("mm", "cpu_op", 0, 1)]
    assert [entry.name for entry in summarize(written(tmp_path / "t.json.gz", events)).top] == ["mm"]


@pytest.mark.parametrize("content", [b"no json", b'{"traceEvents": 3}'])
@pytest.mark.parametrize("write", [bytes, gzip.compress])
def test_a_file_that_is_no_trace(tmp_path, write, content):
    path = tmp_path / "t.json.gz"
    path.write_bytes(write(content))
    with pytest.raises(UserError, match="not a trace"):
        summarize(path)


def test_a_trace_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.profiling.summary.MAX_BYTES", 10)
    with pytest.raises(UserError, match="more than"):
        summarize(written(tmp_path / "t.json.gz", [event("mm", "cpu_op", 0, 1)]))
