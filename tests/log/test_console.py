from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from burnish.log.console import (
    PLAIN,
    ConsoleLogger,
    activity,
    fit,
    get_console,
    line_width,
    progress_counter,
    say,
    short_path,
)
from burnish.log.logger import Loggers, RunInfo

STEP = {
    "critic/score/mean": 0.53125,
    "response_length/mean": 143.25,
    "actor/kl_loss": 0.00123,
    "actor/ppo_kl": 9.0,
    "actor/entropy": 0.4,
    "actor/lr": 1e-6,
    "timing_s/step": 4.25,
    "perf/throughput": 9123.0,
}


def run_lines(console: Console, *steps: dict[str, float], total: int = 100, resume: int | None = None) -> str:
    logger = ConsoleLogger(console)
    logger.start(RunInfo("proj", "exp", Path("runs/x"), {}, total), resume_step=resume)
    for number, metrics in enumerate(steps, (resume or 0) + 1):
        logger.log(number, metrics)
    logger.close()
    return console.file.getvalue()


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=80, soft_wrap=True)


def test_one_plain_line_per_step():
    first, line = run_lines(plain_console(), STEP).splitlines()
    assert first == "proj/exp: 100 steps, in runs/x"
    shown = "step 1/100  score 0.531  length 143.2  kl 0.0012  entropy 0.400  lr 1e-06  4.2 s  9.1k tok/s  left 0:00"
    assert line == shown


def test_missing_metrics_are_omitted_and_a_resume_is_reported():
    lines = run_lines(plain_console(), {"critic/score/mean": 1.0}, resume=99).splitlines()
    assert lines == ["proj/exp: 100 steps, from step 99, in runs/x", "step 100/100  score 1.000"]


def test_validation_and_warnings_have_their_own_lines():
    metrics = {"val-core/gsm8k/acc/mean@1": 0.5, "val-aux/gsm8k/reward/mean@1": 0.25}
    assert run_lines(plain_console(), metrics).splitlines()[1:] == ["validation at step 1: gsm8k/acc/mean@1 0.500"]
    metrics = STEP | {"rollout/zero_variance_groups": 1.0, "rollout/num_groups": 32.0, "rollout/truncated": 1.0}
    lines = run_lines(plain_console(), metrics).splitlines()
    assert lines[2] == "step 1: all 32 groups have equal scores: no learning signal in this step"
    assert "were truncated" in lines[3]


def test_text_is_not_interpreted_as_markup():
    console = plain_console()
    logger = ConsoleLogger(console)
    logger.note("[/bold] :smile: [red]x")
    logger.table("val/generations", 5, ["input", "score"], [["[/b] 四", 1.0], ["x" * 1000, 0.0]])
    text = console.file.getvalue()
    assert "[/bold] :smile: [red]x\n" in text
    assert "  input: [/b] 四\n  score: 1.0\n" in text
    assert "x" * 300 + " ...\n" in text and "x" * 301 not in text


def test_a_notebook_gets_plain_lines():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    console.is_jupyter = True
    logger = ConsoleLogger(console)
    logger._print = lambda text, style=None: console.file.write(text + "\n")
    logger.start(RunInfo("p", "n", Path("r"), {}, 2))
    assert logger.region is None


def test_say_follows_standard_output(capsys):
    say("one [b]line[/b] " + "x" * 200)
    assert capsys.readouterr().out == "one [b]line[/b] " + "x" * 200 + "\n"
    assert get_console() is get_console()


def test_the_console_loads_no_torch():
    code = "import sys, burnish.log.logger; sys.exit(bool({'torch', 'wandb', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_progress_counter_prints_lines_without_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress_counter("prompts", 5, console) as done:
        done(2)
        done(5)
    assert console.file.getvalue().splitlines() == ["2/5 prompts", "5/5 prompts"]


def test_progress_counter_moves_a_bar_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with progress_counter("prompts", 5, console) as done:
        done(5)
    assert "5/5" in console.file.getvalue() and "5/5 prompts" not in console.file.getvalue()


def test_progress_counter_prints_at_most_ten_lines():
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress_counter("rows", 1000, console) as done:
        for number in range(1, 1001):
            done(number)
    assert console.file.getvalue().splitlines() == [f"{number}/1000 rows" for number in range(100, 1001, 100)]


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, _environ={"TERM": "xterm"})


def without_colors(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def printed_lines(console: Console) -> list[str]:
    """What was printed, without colors; also what was erased later."""
    return [line for line in re.split(r"[\r\n]+", without_colors(console.file.getvalue())) if line]


LONG = STEP | {"rollout/zero_variance_groups": 1.0} | {f"val-core/source_{i}/acc/mean@1": 0.5 for i in range(5)}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    console = terminal(width)
    logger = ConsoleLogger(console)
    logger.start(RunInfo("project", "experiment", Path("runs/a/b/c"), {}, 1000))
    logger.note("sampling noise depends only on seed and prompt; the last bits of log-probs also on the batch")
    logger.note("词" * 25 + " " + "语" * 25)
    for step in (9, 10, 999):
        logger.log(step, LONG)
    logger.close()
    lines = printed_lines(console)
    assert max(cell_len(line) for line in lines) <= width
    steps = [line for line in lines if line.startswith("step ") and "score 0." in line]
    assert len(steps) == 1 and steps[0].startswith("step 999/1000") and "4.2 s" in steps[0]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_plain_lines_fit_a_terminal_and_have_the_same_columns(width, monkeypatch):
    monkeypatch.setenv(PLAIN, "1")
    console = terminal(width)
    lines = run_lines(console, LONG, *[STEP] * 9, total=1000).splitlines()
    assert "\x1b[1A" not in console.file.getvalue() and "\r" not in console.file.getvalue()
    steps = [line for line in map(without_colors, lines) if line.startswith("step ") and "score 0." in line]
    assert len(steps) == 10 and max(map(cell_len, steps)) <= width
    assert all("4.2 s" in line for line in steps)
    assert len({("lr" in line, "tok/s" in line) for line in steps}) == 1


def test_words_stay_whole():
    command = "burnish generate model.path=/a/very/long/path/that/is/wider/than/the/terminal"
    assert fit(f"next: {command}", 40).split() == f"next: {command}".split()
    assert fit(command, None) == command
    assert fit("  a bb ccc", 8) == "  a bb\n    ccc"


def test_a_broken_command_can_be_copied():
    command = "  burnish generate model.path=/a/long/path/model data.path=FILE data.output_path=OUT"
    broken = fit(command, 40)
    assert max(map(len, broken.splitlines())) <= 40 and len(broken.splitlines()) == 4
    assert shlex.split(broken.replace("\\\n", "")) == shlex.split(command)


def test_columns_of_the_environment_limit_a_pipe(monkeypatch):
    console = plain_console()
    assert line_width(console) is None
    monkeypatch.setenv("COLUMNS", "80")
    assert line_width(console) == 80


def test_a_warning_appears_once_with_a_count():
    console = plain_console()
    failed = [STEP | {"reward/failed": float(count)} for count in (1, 2, 3)]
    lines = run_lines(console, *failed).splitlines()
    assert [line for line in lines if "failed" in line] == [
        "step 1: the reward function failed on 1 response",
        "the reward function failed on 1 response (3 times, steps 1 to 3)",
    ]
    logger = ConsoleLogger(plain_console())
    for _ in range(4):
        logger.note("the disk is slow")
    logger.close()
    logger.close()
    assert logger.console.file.getvalue().splitlines() == ["the disk is slow", "the disk is slow (4 times)"]


def test_an_activity_is_shown_on_a_terminal_and_after_a_while_elsewhere(monkeypatch):
    console = terminal(80)
    with activity("loading the model", console=console) as update:
        update("loading the engine")
    assert "loading the model" in console.file.getvalue()
    plain = plain_console()
    shown = threading.Event()
    plain.print = lambda text: shown.set() if text == "validation ..." else None
    monkeypatch.setattr("burnish.log.console.SECONDS_UNTIL_SHOWN", 0.0)
    with activity("validation", console=plain):
        assert shown.wait(10)


def test_a_short_or_hidden_activity_prints_nothing():
    plain, hidden = plain_console(), terminal(80)
    with activity("validation", console=plain), activity("nested", console=plain):
        pass
    with activity("loading", shown=False, console=hidden):
        pass
    assert plain.file.getvalue() == hidden.file.getvalue() == ""


def test_only_a_console_logger_shows_activities():
    with Loggers(["file"]).activity("loading") as update:
        update("still loading")
    assert Loggers(["console"]).loggers["console"].region is None


def test_paths_are_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "x") == "runs/x"
    assert short_path("/elsewhere/x") == "/elsewhere/x"
