"""burnish view --text: runs in the terminal, without a browser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.view.runs import RunReader
    from burnish.view.text import Line


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """--text and what it shows."""
    group = parser.add_argument_group("in the terminal")
    group.add_argument("--text", action="store_true", help="print curves and samples of the newest run, and stop")
    group.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="NAME",
        help="curves of these metrics only: a prefix, or a name with * and ?",
    )
    group.add_argument("--step", type=int, metavar="N", help="samples of this step (default: the newest)")
    group.add_argument("--group", type=int, metavar="N", help="the texts of this group of samples, from 0 on")
    group.add_argument("--search", metavar="TEXT", help="samples of the whole run that contain a text")
    group.add_argument("--limit", type=int, default=20, metavar="N", help="groups or matches to list (default: 20)")
    group.add_argument("--full", action="store_true", help="print long texts whole")


def show_text(args: argparse.Namespace, runs: Sequence[RunReader]) -> int:
    """Print what the flags ask for, of the run that wrote last."""
    from rich.text import Text

    from burnish.log.console import get_console, line_width

    console = get_console()
    for text, style in _lines(args, runs[0], line_width(console)):
        console.print(Text(text, style=style, no_wrap=True), soft_wrap=True)
    if len(runs) > 1:
        console.print(f"{len(runs) - 1} more runs: `burnish runs` lists them, `burnish view --text RUN` shows one")
    return 0


def _lines(args: argparse.Namespace, run: RunReader, width: int | None) -> Iterator[Line]:
    from burnish.view import text

    if args.search is not None:
        yield from text.matches(run, args.search, width, args.limit)
    elif args.group is not None:
        yield from text.group(run, args.step, args.group, width, full=args.full)
    elif args.step is not None:
        yield from text.samples(run, args.step, width, args.limit)
    else:
        yield from text.summary(run, width)
        yield from text.curves(run, width, args.metrics)
        if run.steps() and not args.metrics:
            yield text.Line("")
            yield from text.samples(run, None, width, args.limit)
