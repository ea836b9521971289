"""What the demo prints at the end: within the width of the terminal, with the way on from there."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from burnish.cli.demo import how_to_call, show
from burnish.demo.run import DemoResult

RESULT = DemoResult(
    seed=1,
    heading="sort these digits",
    before=0.33,
    after=0.9,
    seconds=71.0,
    folder=Path("runs/demo/seed_1/run").absolute(),
    questions=512,
    curve=[0.1 + step / 300 for step in range(240)],
    samples=[("35447", "3457", "34557", "34457")] * 6,
)


@pytest.mark.parametrize("width", [60, 80])
def test_the_result_fits_the_terminal(monkeypatch, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, soft_wrap=True, _environ={"TERM": "xterm"})
    monkeypatch.setattr("burnish.log.console.get_console", lambda: console)
    show(RESULT)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "greedy accuracy on 512 held-out questions: 0.33 -> 0.90" in lines
    assert "in a browser: burnish view runs/demo/seed_1/run" in lines
    assert "71 s; files in runs/demo/seed_1/run, curves in curves.png" in lines


def test_the_demo_prints_how_to_get_the_command(tmp_path, monkeypatch):
    (tmp_path / "Makefile").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "/usr/bin")
    first, second = how_to_call()
    assert first.endswith("source .venv/bin/activate")
    assert second.endswith("make shell")


def test_the_demo_prints_next_commands_in_an_activated_shell(tmp_path, monkeypatch):
    command = tmp_path / "bin" / "burnish"
    command.parent.mkdir()
    command.touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(command.parent))
    (line,) = how_to_call()
    assert "burnish train" in line
