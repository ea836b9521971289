"""Characters that act on a terminal are shown, not obeyed, wherever text of others is printed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from burnish.cli.main import main
from burnish.escape import EscapedStream, escape
from burnish.log.clock import Clock
from burnish.log.console import Console, ConsoleLogger, activity, say, say_error
from burnish.log.curves import draw_curves
from burnish.log.jsonl import encode
from burnish.log.logger import Loggers, RunInfo
from burnish.loop.watchdog import Watchdog
from burnish.reward.output import OutputLog

from .attacks import attack

SEQUENCES = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the window title": "\x1b]0;owned\x07",
    "links elsewhere": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "copies to the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "hides text": "\x1b[8mhidden\x1b[0m",
    "8-bit control sequence": "\x9b2J\x9d0;t\x9c",
    "answers a device query": "\x1b[c\x1bP$q\x1b\\\x05",
    "overwrites the line": "error\rfine ",
    "deletes with backspaces": "no\b\byes",
    "rings and feeds": "\a\v\f\x7f\x00",
    "reverses the reading direction": "\u202eevil\u202c",
    "isolates the reading direction": "\u2066a\u2069\u200f\u200e\u061c",
    "invisible tags": "\U000e0001\U000e0041",
    "invisible characters": "a\u200bb\u2060c\ufeffd",
    "separates lines": "a\u2028b\u2029c\x85d",
    "lone surrogates": "a\ud800b\udfff",
}
HOSTILE = "".join(SEQUENCES.values())
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def assert_shown(printed: str) -> None:
    """All of HOSTILE is in the text, as escapes."""
    assert not RAW.search(printed)
    assert "\\u001b[2J" in printed and "\\u202e" in printed


@pytest.mark.parametrize("text", [pytest.param(t, id=n, marks=attack("terminals", n)) for n, t in SEQUENCES.items()])
def test_sequences_are_escaped_and_readable(text):
    escaped = escape(text)
    assert not RAW.search(escaped) and "\U000e0001" not in escaped
    assert "\\" in text or json.loads(f'"{escaped}"') == text  # nothing is lost
    assert escape(escaped) == escaped
    escaped.encode("utf-8")  # a terminal can print it


@attack("terminals", "any characters at all")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text())
def test_no_text_leaves_a_raw_character(text):
    assert not RAW.search(escape(text))
    assert escape(text) == text or RAW.search(text) or re.search("[\u180e\ufff9-\ufffb\U000e0000-\U000e007f]", text)


@attack("terminals", "text of people is not garbled")
def test_ordinary_text_stays():
    for text in ("línea\n\ttab", "日本語 العربية हिन्दी", "👩‍👩‍👧 🏳️‍🌈", "می‌خواهم", "a\\u001b"):
        assert escape(text) == text


def terminal() -> tuple[Console, io.StringIO]:
    """A console that takes itself for a terminal with colors."""
    output = io.StringIO()
    return Console(file=output, force_terminal=True, color_system="truecolor", width=80), output


def without_rich(printed: str) -> str:
    """Without the colors and cursor movements that rich adds itself."""
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[2K|\r", "", printed)


@attack("terminals", "the console shows a model's response")
def test_validation_samples():
    console, output = terminal()
    logger = ConsoleLogger(console)
    logger.table("val/generations", 1, ["input", "output", "score"], [["q", HOSTILE, 0.0]])
    assert_shown(without_rich(output.getvalue()))


@attack("terminals", "a response imitates the run's own lines")
def test_a_response_cannot_look_like_a_line_of_the_run():
    console, output = terminal()
    ConsoleLogger(console).table("val", 1, ["output"], [["fine\nstep 9/9  score 1.000"]])
    assert not any(line.startswith("step 9") for line in without_rich(output.getvalue()).splitlines())


@attack("terminals", "markup of rich in names and responses")
@pytest.mark.parametrize("text", ["[red]x[/red]", "[link=http://evil.example]x[/link]", "[/]", ":smile:", "[bold"])
def test_markup_is_text(text):
    console, output = terminal()
    logger = ConsoleLogger(console)
    logger.note(text)
    logger.table(text, 1, [text], [[text]])
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(table)
    assert without_rich(output.getvalue()).count(text) >= 5 and "\x1b]8" not in output.getvalue()


@attack("terminals", "a reward's error message, and its count at the end")
def test_notes():
    console, output = terminal()
    logger = ConsoleLogger(console)
    logger.note(f"the reward failed: {HOSTILE}")
    logger.note(f"the reward failed: {HOSTILE}")
    logger.close()
    assert_shown(without_rich(output.getvalue()))


@attack("terminals", "names of runs, datasets and metrics on the console")
def test_names(tmp_path):
    console, output = terminal()
    logger = ConsoleLogger(console)
    logger.start(RunInfo("p" + HOSTILE, "n" + HOSTILE, tmp_path, {}, 2))
    logger.log(1, {f"val-core/{HOSTILE}/reward/mean@1": 1.0})
    logger.close()
    assert_shown(without_rich(output.getvalue()))


@attack("terminals", "progress lines and bars with text of others")
def test_progress():
    console, output = terminal()
    with activity(HOSTILE, console=console) as update:
        update(HOSTILE)
    logger = ConsoleLogger(console)
    logger.start(RunInfo("p", "n", Path("runs"), {}, 2))
    with logger.activity(HOSTILE):
        assert logger.region is not None
        logger.region.refresh()
    logger.close()
    printed = without_rich(output.getvalue())
    assert not RAW.search(printed) and "\\u001b[2J" in printed  # the end does not fit


@attack("terminals", "messages and errors outside of a run")
def test_messages(capsys):
    say(HOSTILE)
    say_error(HOSTILE)
    printed = capsys.readouterr()
    assert_shown(printed.out)
    assert_shown(printed.err)


VERL = ["--", "python3", "-m", "verl.trainer.main_ppo"]
COMMANDS = {
    "an unknown key": ["train", f"{HOSTILE}=1"],
    "an override that cannot be parsed": ["train", f"data.train_files={HOSTILE}["],
    "a script that does not exist": ["convert", f"{HOSTILE}.sh"],
    "an unknown command": [HOSTILE.replace("\x00", "")],
    "an unknown flag": ["doctor", f"--{HOSTILE}"],
    "an unknown setting of a command": ["convert", *VERL, f"a.{HOSTILE}=1"],
    "the value of a setting": ["convert", *VERL, f"trainer.project_name='{HOSTILE}'"],
    "a search": ["explain", HOSTILE],
    "a data file": ["data", "check", f"{HOSTILE}.parquet"],
    "a value in the config": ["train", f"trainer.project_name='{HOSTILE}'", "--cfg"],
}


@pytest.mark.parametrize(
    "words", [pytest.param(w, id=n, marks=attack("terminals", f"command line: {n}")) for n, w in COMMANDS.items()]
)
def test_commands_print_escaped(words, capsys):
    with contextlib.suppress(SystemExit):  # of argparse
        main(words)
    printed = capsys.readouterr()
    assert not RAW.search(printed.out + printed.err)


@attack("terminals", "JSON output with control characters stays what it was")
def test_json_output_is_unchanged(capsys):
    hostile = "\u202e\u200bx\x9b"
    main(["convert", "--json", *VERL, f"trainer.project_name='{hostile}'"])
    printed = capsys.readouterr().out
    assert not RAW.search(printed)
    assert json.loads(printed)["config"]["trainer"]["project_name"] == hostile


@attack("terminals", "tracebacks and warnings of the whole process")
def test_tracebacks_are_escaped():
    code = (
        "import logging, warnings, sys; from burnish.escape import escape_output; escape_output()\n"
        "bad = chr(27) + '[2J' + chr(0x202e)\n"
        "logging.warning(bad); warnings.warn(bad); print(bad); sys.stdout.writelines([bad])\n"
        "raise ValueError(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr and "\u202e" not in done.stdout + done.stderr
    assert done.stdout.count("\\u001b[2J\\u202e") == 2 and done.stderr.count("\\u001b[2J\\u202e") >= 3


@attack("terminals", "a library's progress bar with a hostile name")
def test_bars_of_libraries_move_the_cursor_and_nothing_else():
    from tqdm import tqdm

    output = io.StringIO()
    stream = EscapedStream(output)
    for _ in tqdm(range(2), desc=f"\x1b[2J\u202e{'x'}", file=stream):
        pass
    assert "\r" in output.getvalue() and "\\u001b[2J\\u202e" in output.getvalue()
    assert not RAW.search(output.getvalue().replace("\r", ""))


@attack("terminals", "text files of the run folder")
def test_text_files_are_escaped_and_json_keeps_the_text(tmp_path):
    loggers = Loggers(["file"])
    loggers.start(RunInfo("p", "n", tmp_path, {}, 1))
    loggers.note(HOSTILE)
    loggers.table("val", 1, ["output"], [["\x1b[2J\u202e"]])
    loggers.close()
    OutputLog(tmp_path / "reward.log").write("sample", HOSTILE)
    assert_shown((tmp_path / "notes.txt").read_text())
    assert_shown((tmp_path / "reward.log").read_text())
    (row,) = (tmp_path / "tables" / "val" / "1.jsonl").read_text().splitlines()
    assert not RAW.search(row) and json.loads(row)["output"] == "\x1b[2J\u202e"


@attack("terminals", "stacks of workers that hang")
def test_stacks_of_workers(tmp_path, capfd):
    watchdog = Watchdog(Clock(), 1.0, tmp_path, kill_workers=lambda phase, seconds: HOSTILE)
    watchdog._kill_workers(watchdog.kill_workers)
    assert_shown(capfd.readouterr().err)


@attack("terminals", "a dataset's name as mathematics in a plot")
def test_names_in_plots(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        "".join(encode({"step": n, "data": {f"val-core/$\\frac{{{HOSTILE}$/reward/mean@1": n}}) + "\n" for n in (1, 2)),
        errors="backslashreplace",
    )
    assert draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png") and (tmp_path / "curves.png").stat().st_size


@attack("terminals", "a million control characters")
def test_escaping_takes_linear_time():
    def seconds(count: int) -> float:
        started = time.process_time()
        escape("\x1b" * count)
        return time.process_time() - started

    assert seconds(160_000) < 80 * max(seconds(10_000), 0.001)
