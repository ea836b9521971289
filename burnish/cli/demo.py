"""burnish demo: from nothing to a model that learned, in a minute or two, on a CPU."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="make a tiny model and data, and improve it by reinforcement",
        description="Makes data, a tokenizer and a tiny model, warms it up, trains it by GRPO, shows what changed.",
    )
    parser.add_argument("--seed", type=int, default=1, help="everything follows from it (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="where to write (default: runs/demo)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON, and say little else")


def run(args: argparse.Namespace) -> int:
    from burnish.demo.run import run_demo  # torch is loaded only now
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


def show(result: object) -> None:
    """Accuracy before and after, a few real answers, the curve, and where the rest is."""
    from rich.table import Table

    from burnish.log.console import get_console
    from burnish.log.curves import terminal_curve

    console = get_console()
    console.print("\nmean reward by step")
    console.print(terminal_curve(result.curve))
    table = Table("sort these digits", "before", "after", "right answer")
    for question, before, after, right in result.samples:
        table.add_row(question, before, f"{after} {'✓' if after == right else '✗'}", right)
    console.print(table)
    console.print(
        f"greedy accuracy on {result.questions} held-out questions: {result.before:.2f} -> {result.after:.2f}",
        style="bold",
    )
    console.print(f"{result.seconds:.0f} s. Curves: {result.folder / 'curves.png'}; everything else is beside it.")
