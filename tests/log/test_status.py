"""The live display of a run, on the screen of a terminal (pyte)."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyte
import pytest
from rich.cells import cell_len

from burnish.escape import EscapedStream
from burnish.log import console as console_module
from burnish.log.console import PLAIN, Console, ConsoleLogger, announce
from burnish.log.logger import RunInfo
from burnish.log.status import REFLOWING, RunStatus

STEP = {
    "critic/score/mean": 0.53125,
    "response_length/mean": 143.25,
    "actor/kl_loss": 0.00123,
    "actor/entropy": 0.4,
    "actor/lr": 1e-6,
    "timing_s/step": 4.25,
    "perf/throughput": 9123.0,
}
EQUAL = STEP | {"rollout/zero_variance_groups": 1.0, "rollout/num_groups": 32.0}


class Terminal:
    """A console whose output can be seen as it would be on a screen."""

    def __init__(self, width: int = 80, height: int = 40) -> None:
        self.console = Console(
            file=io.StringIO(), width=width, height=height, force_terminal=True, _environ={"TERM": "xterm"}
        )
        self._screen = pyte.Screen(width, height)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)
        self._seen = 0

    def lines(self) -> list[str]:
        text = self.console.file.getvalue()
        self._stream.feed(text[self._seen :])
        self._seen = len(text)
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def resize(self, width: int) -> None:
        self.lines()
        self._screen.resize(columns=width)
        self.console.width = width

    @property
    def cursor_is_hidden(self) -> bool:
        self.lines()
        return self._screen.cursor.hidden


def start(terminal: Terminal, total: int = 240, resume: int | None = None) -> ConsoleLogger:
    logger = ConsoleLogger(terminal.console)
    logger.start(RunInfo("proj", "exp", Path("runs/x"), {}, total), resume_step=resume)
    logger.region.auto_refresh = False  # closing waits for no thread
    return logger


@pytest.fixture(autouse=True)
def _no_terminal_of_ours(monkeypatch):
    for name in (*REFLOWING, PLAIN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rich.live._RefreshThread.start", lambda thread: None)  # frames do not depend on time
    yield
    left = console_module._regions.copy()
    console_module._regions.clear()
    assert left == []


def test_steps_update_one_region_and_the_last_line_stays():
    terminal = Terminal()
    logger = start(terminal)
    for step in range(1, 201):
        logger.log(step, STEP | {"critic/score/mean": step / 200})
        logger.region.refresh()
    lines = terminal.lines()
    assert len(lines) <= 5
    assert lines[0] == "proj/exp: 240 steps, in runs/x"
    assert lines[1].startswith("training ━━━━") and "200/240" in lines[1] and "left 0:00" in lines[1]
    shown = " ".join(lines[2:])
    for part in ("score 1.000 ▁", "kl 0.0012", "entropy 0.400", "length 143.2", "9.1k tok/s", "4.2 s"):
        assert part in shown
    logger.close()
    assert terminal.lines() == [lines[0], _last_line(200, 240)]


def _last_line(step: int, total: int) -> str:
    return f"step {step}/{total}  score 1.000  length 143.2  kl 0.0012  entropy 0.400  4.2 s"


def test_validations_warnings_and_notes_stay_above():
    terminal = Terminal()
    logger = start(terminal)
    logger.note("a notice of the run")
    logger.log(0, {"val-core/gsm8k/acc/mean@1": 0.5})
    logger.log(1, EQUAL)
    logger.log(2, EQUAL | {"val-core/gsm8k/acc/mean@1": 0.25})
    logger.region.refresh()
    above = [
        "proj/exp: 240 steps, in runs/x",
        "a notice of the run",
        "validation at step 0: gsm8k/acc/mean@1 0.500",
        "step 1: all 32 groups have equal scores: no learning signal in this step",
        "validation at step 2: gsm8k/acc/mean@1 0.250",
    ]
    lines = terminal.lines()
    assert lines[:5] == above
    region = lines[5:]
    assert "validation 0.250 (step 2, best 0.500)" in " ".join(region)
    assert region[-1].strip() == "step 2 (2 times): all 32 groups have equal scores: no learning signal in..."
    logger.close()
    assert terminal.lines()[:5] == above
    assert "(2 times, steps" in " ".join(terminal.lines())
    assert not any("━" in line or "──" in line for line in terminal.lines())


def test_hostile_text_neither_acts_nor_wraps():
    terminal = Terminal()
    logger = start(terminal)
    hostile = "\x1b[2J\x1b]0;title\x07\u202e\r" + "词" * 100
    logger.log(1, STEP)
    logger.log(2, EQUAL | {f"{hostile}/skipped_updates": 1.0})
    with logger.activity(hostile):
        logger.region.refresh()
        lines = terminal.lines()
    assert lines[0] == "proj/exp: 240 steps, in runs/x"  # nothing was cleared
    assert "\x1b[2J" not in terminal.console.file.getvalue()
    region = lines[next(i for i, line in enumerate(lines) if "─" in line) :]
    assert len(region) <= 5 and all(cell_len(line) <= 80 for line in region)
    assert region[0].startswith("\\u001b[2J") and "2/240" in region[0]
    logger.close()


@pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    status = RunStatus(100_000, 0)
    status.update(99_999, STEP | {"val-core/a/acc/mean@1": 0.5, "val-core/b/acc/mean@1": 0.25})
    status.warning = "词" * 100
    status.label = "saving a checkpoint of an unusual length"
    lines = status.lines(width)
    assert all(cell_len(line.plain) <= width for line in lines)
    assert len(lines) <= 5


def test_a_narrower_window_leaves_no_remains():
    terminal = Terminal(80)
    logger = start(terminal)
    logger.log(1, STEP)
    logger.region.refresh()
    terminal.resize(50)
    logger.note("after the change")
    logger.region.refresh()
    lines = terminal.lines()
    assert sum("1/240" in line for line in lines) == 1
    assert lines[1] == "after the change"
    logger.close()
    assert [line for line in terminal.lines() if "─" in line] == []


def test_a_terminal_that_wraps_lines_anew_is_cleaned_too(monkeypatch):
    """There, a line of 75 columns has two rows after the window became 50 columns wide."""
    monkeypatch.setenv("VTE_VERSION", "7600")
    terminal = Terminal(80)
    logger = start(terminal)
    logger.log(1, STEP)
    logger.region.refresh()
    wide = [columns for columns in logger.region._drawn if columns > 50]
    assert wide
    terminal.console.width = 50
    before = len(terminal.console.file.getvalue())
    rows = len(logger.region._drawn) + len(wide)
    logger.region.refresh()
    assert terminal.console.file.getvalue()[before:].count("\x1b[1A") == rows - 1
    logger.close()


def test_an_exception_leaves_the_terminal_clean():
    terminal = Terminal()
    streams = sys.stdout, sys.stderr
    logger = start(terminal)
    assert sys.stdout is not streams[0]
    try:
        logger.log(1, STEP)
        assert not terminal.cursor_is_hidden  # a killed process leaves a cursor too
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logger.close()
    assert terminal.lines() == ["proj/exp: 240 steps, in runs/x", _last_line(1, 240).replace("1.000", "0.531")]
    assert not terminal.cursor_is_hidden
    assert (sys.stdout, sys.stderr) == streams


def test_a_signal_handler_announces_above_the_region(capfd):
    terminal = Terminal()
    logger = start(terminal)
    announce("Ctrl-C received: finishing this step, then saving.\nSend again to exit immediately.")
    assert "Ctrl-C" not in terminal.console.file.getvalue()  # the next refresh prints it
    logger.region.refresh()
    assert terminal.lines()[1:3] == [
        "Ctrl-C received: finishing this step, then saving.",
        "Send again to exit immediately.",
    ]
    announce("and before the end")
    logger.close()
    assert "and before the end" in terminal.lines()
    announce("without a region")
    assert capfd.readouterr().err == "\nwithout a region\n"


def test_print_of_a_library_appears_above_the_region(monkeypatch):
    terminal = Terminal()
    stream = terminal.console.file
    monkeypatch.setattr(sys, "stdout", EscapedStream(stream))
    terminal.console._file = None  # as the shared console: what standard output is now
    logger = start(terminal)
    logger.region.refresh()
    print("a line of a library")
    logger.region.refresh()
    logger.close()
    terminal.console._file = stream
    assert "\\u001b" not in stream.getvalue()  # control codes of the display are not escaped
    assert terminal.lines()[:2] == ["proj/exp: 240 steps, in runs/x", "a line of a library"]


def test_a_terminal_without_unicode_gets_ascii():
    status = RunStatus(10)
    for step, score in enumerate((0.1, 0.5), 1):
        status.update(step, STEP | {"critic/score/mean": score})
    assert all(line.plain.isascii() for line in status.lines(77, ascii_only=True))


def test_the_time_left_counts_down():
    now = [0.0]
    status = RunStatus(10, done=2, now=lambda: now[0])
    assert status.seconds_left() is None
    now[0] = 8.0
    status.update(4, STEP)
    assert status.seconds_left() == 24.0
    now[0] = 10.0
    assert status.seconds_left() == 22.0
    status.update(10, STEP)
    assert status.seconds_left() is None


def test_supervised_runs_show_their_loss():
    status = RunStatus(10)
    status.update(1, {"train/loss": 2.0, "train/lr": 1e-3})
    status.update(2, {"train/loss": 1.5, "train/lr": 1e-3, "val/loss": 1.75})
    text = " ".join(line.plain for line in status.lines(77))
    assert "loss 1.5000 █▁" in text and "validation 1.750 (step 2)" in text
