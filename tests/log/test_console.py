from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from burnish.log.console import ConsoleLogger, get_console, progress_counter, say
from burnish.log.logger import RunInfo

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


def test_a_terminal_shows_a_bar_below_the_lines():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, force_interactive=True, legacy_windows=False)
    console.file.isatty = lambda: True
    console._environ = {"TERM": "xterm-256color"}
    text = run_lines(console, STEP, STEP, total=2)
    assert "1/2" in text and "2/2" in text and "━" in text
    assert "score 0.531" in text
    assert "left 0:00\n" not in text  # the bar has the time left, the lines do not repeat it


def test_a_notebook_gets_plain_lines():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    console.is_jupyter = True
    logger = ConsoleLogger(console)
    logger._print = lambda text, style=None: console.file.write(text + "\n")
    logger.start(RunInfo("p", "n", Path("r"), {}, 2))
    assert logger.progress is None


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
