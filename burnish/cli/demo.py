"""burnish demo: create a tiny model and data, and train it with GRPO in a minute or two on a CPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.demo.run import DemoResult


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a tiny model with RL on the CPU",
        description="Creates data, a tokenizer and a tiny model, fine-tunes it, trains it with GRPO, shows results.",
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="output folder (default: runs/demo)")
    parser.add_argument("--json", action="store_true", help="print only one line of JSON at the end")


def run(args: argparse.Namespace) -> int:
    from burnish.demo.run import run_demo  # imports torch
    from burnish.log.console import get_console

    console = get_console()
    folder = args.folder / f"seed_{args.seed}"
    quiet = ("trainer.logger=[file]",) if args.json else ()
    result = run_demo(folder, args.seed, overrides=quiet, say=(lambda text: None) if args.json else console.print)
    if args.json:
        print(result.line())
        return 0
    show(result)
    return 0


def show(result: DemoResult) -> None:
    """Print the reward curve, example answers, accuracy before and after, and the output folder."""
    from rich.table import Table

    from burnish.log.console import get_console
    from burnish.log.curves import terminal_curve

    console = get_console()
    console.print("\nmean reward by step")
    console.print(terminal_curve(result.curve))
    table = Table("sort these digits", "before", "after", "correct answer")
    for question, before, after, answer in result.samples:
        table.add_row(question, before, f"{after} {'✓' if after == answer else '✗'}", answer)
    console.print(table)
    console.print(
        f"greedy accuracy on {result.questions} held-out questions: {result.before:.2f} -> {result.after:.2f}",
        style="bold",
    )
    console.print(
        f"{result.seconds:.0f} s. Curves: {result.folder / 'curves.png'}; the other files are in the same folder."
    )
