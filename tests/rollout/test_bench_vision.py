"""The benchmark of vision models runs on a CPU, checks what it measures, and says what it leaves out."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def run_vision(monkeypatch, capsys, tmp_path):
    """run_vision(*arguments): its exit status, what it printed, and its rows."""

    def run(*arguments: str):
        monkeypatch.syspath_prepend(str(BENCH))
        monkeypatch.setattr(sys, "argv", ["vision.py", "--smoke", "--results", str(tmp_path), *arguments])
        status = importlib.import_module("vision").main()
        return status, capsys.readouterr().out, json.loads((tmp_path / "vision.json").read_text())["rows"]

    return run


def test_vision(run_vision):
    status, printed, (vision, text) = run_vision()
    assert status == 0 and "WRONG" not in printed and "LEFT OUT" not in printed
    assert vision["difference"] < 2e-5 and text["difference"] < 2e-5
    assert vision["engine"]["prefill_tokens"] == text["engine"]["prefill_tokens"]  # of the measured rollout alone
    assert vision["engine"]["tokens"] == text["engine"]["tokens"] == 4 * 2 * 6
    assert vision["engine"]["graph_replays"] == text["engine"]["graph_replays"] > 0
    assert vision["picture_tokens"] == 4 and 0 < vision["tower_share"] < 1
    assert "tower_seconds" not in text


def test_what_the_budget_does_not_allow_is_said(run_vision):
    status, printed, rows = run_vision("--budget", "-1000")
    assert status == 0 and printed.count("LEFT OUT") == 2
    assert [row["model"] for row in rows] == ["tiny VL"] and "mfu" not in rows[0]
