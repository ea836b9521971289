"""burnish demo: create a tiny model and data, and train it with GRPO in a minute or two on a CPU."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.cli.parser import add_plain, plain_output
from burnish.demo.tasks import DEFAULT, TASKS

if TYPE_CHECKING:
    from burnish.demo.run import DemoResult


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a tiny model with RL on the CPU",
        description="Creates data, a tokenizer and a tiny model, fine-tunes it, trains it with GRPO, shows results.",
    )
    tasks = "; ".join(f"{name}: {entry.metadata['about']}" for name, entry in TASKS.entries.items())
    parser.add_argument("--task", choices=TASKS.names(), default=DEFAULT, help=f"{tasks} (default: {DEFAULT})")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--folder", type=Path, help="output folder (default: runs/demo, or runs/demo_TASK)")
    parser.add_argument("--json", action="store_true", help="print only one line of JSON at the end")
    add_plain(parser)


def run(args: argparse.Namespace) -> int:
    from burnish.log.console import activity

    with activity("loading PyTorch", shown=not args.json):
        from burnish.demo.run import run_demo

    folder = (args.folder or Path(TASKS[args.task].metadata["folder"])) / f"seed_{args.seed}"
    quiet = ("trainer.logger=[file]",) if args.json else ()
    with plain_output(args.plain):
        result = run_demo(folder, args.seed, task=args.task, overrides=quiet, shown=not args.json)
    if args.json:
        print(result.line())
        return 0
    show(result)
    return 0


def show(result: DemoResult) -> None:
    """Print the reward curve, example answers, accuracy before and after, the files, and how to go on."""
    from rich.table import Table

    from burnish.log.console import get_console, line_width, say, short_path
    from burnish.log.curves import terminal_curve

    console = get_console()
    say("\nmean reward by step")
    say(terminal_curve(result.curve, width=min(60, (line_width(console) or 80) - 10)))
    table = Table(result.heading, "before", "after", "correct answer")
    for question, before, after, answer in result.samples:
        table.add_row(question, before, f"{after} {'✓' if after == answer else '✗'}", answer)
    console.print(table)
    say(
        f"greedy accuracy on {result.questions} held-out questions: {result.before:.2f} -> {result.after:.2f}",
        style="bold",
    )
    say(f"{result.seconds:.0f} s; files in {short_path(result.folder)}, curves in curves.png")
    for line in how_to_call():
        say(line)
    say(f"in a browser: {view_command(result.folder)}", style="bold")


def view_command(folder: Path) -> str:
    """The command that opens a run in the viewer, with the extra that it needs where that is missing."""
    from importlib.util import find_spec

    from burnish.errors import install_extra
    from burnish.log.console import short_path

    install = "" if find_spec("aiohttp") else f"{install_extra('view')} && "
    return f"{install}burnish view {shlex.quote(short_path(folder))}"


def how_to_call() -> list[str]:
    """How to type `burnish`, if the shell does not find this installation's."""
    from burnish.log.console import short_path

    environment = Path(sys.prefix)
    command = shutil.which("burnish")
    if command is not None and Path(command).resolve().parent == (environment / "bin").resolve():
        return ["next: burnish train --help, and docs/start.md"]
    activate = short_path(environment / "bin" / "activate")
    lines = [f"to type `burnish` in this shell: source {activate}"]
    if (environment.parent / "Makefile").is_file():
        lines.append("or, in a new one: make shell")
    return lines
