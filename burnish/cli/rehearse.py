"""burnish rehearse: a launch command for a step or two on this machine, with stand-ins for what is not here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from burnish.cli.asked import USAGE, add_words, read_asked
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.rehearsal.report import Rehearsal

UNREAD = 2
PAGE = 140  # columns where there is no terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "rehearse",
        help="try a launch command for a step with a tiny stand-in",
        description=f"burnish rehearse [--steps N] [--json] [--live] {USAGE}",
    )
    parser.add_argument("--steps", type=_positive, default=1, metavar="N", help="steps to run (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--live", action="store_true", help="ask remote reward services for real")
    parser.add_argument("--keep", metavar="DIR", help="keep what was made there: models, rows, the run")
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 passed, 1 the real run would break, 2 nobody reads the command, 3 something was refused."""
    try:
        asked = read_asked(args.words)
    except UserError as error:
        return _unread(error, args.json)
    from burnish.rehearsal.rehearse import rehearse  # torch is loaded only now that there is something to run

    done = [rehearse(one, steps=args.steps, live=args.live, folder=args.keep) for one in asked.translations]
    if args.json:
        objects = [one.to_json() for one in done]
        whole = objects[0] if len(objects) == 1 else {"commands": objects}
        print(json.dumps(whole, ensure_ascii=False, indent=2, default=str))
    else:
        for one in done:
            show(one, asked.notes)
    return max(one.exit_status for one in done)


def show(report: Rehearsal, notes: list[str]) -> None:
    """What was wrong first, then what was changed to get there, then what was not tested."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PAGE
    steps = f"{report.steps} step{'s' if report.steps > 1 else ''}"
    console.print(f"{report.dialect}, as `burnish {report.job}`, {steps} in {report.seconds:.1f} s", style="bold")
    warnings = [f"{finding.where}: {finding.text}" for finding in report.findings if not finding.breaks]
    sections = (
        ("stand-ins", report.stand_ins, ""),
        ("scaled down", report.scaled, ""),
        ("folded onto this machine", report.folded, ""),
        ("dropped: comes with later work", report.dropped, ""),
        ("no effect here", report.inert, ""),
        ("not tested", report.not_tested, ""),
        ("about the script", notes, ""),
        ("worth knowing", warnings, "yellow"),
        ("refused", report.refused, "red"),
        ("would break the real run", _breaking(report), "red"),
    )
    for title, lines, style in sections:
        _print_section(console, title, lines, style)
    console.print(f"{report.verdict}.", style="bold green" if report.passed else "bold red")


def _breaking(report: Rehearsal) -> list[str]:
    return [f"{finding.where}: {finding.text}" for finding in report.findings if finding.breaks]


def _print_section(console: Any, title: str, lines: list[str], style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if not lines:
        return
    console.print(Text(title, style=style or "dim"))
    for line in lines:
        console.print(Padding(Text(line, style=style), (0, 0, 0, 2), expand=False))


def _unread(error: UserError, as_json: bool) -> int:
    from burnish.log.console import say_error

    if as_json:
        found = {"where": "reading", "text": error.text(), "breaks": True}
        empty: dict[str, Any] = {"dialect": None, "job": None, "steps": 0, "passed": False, "seconds": 0.0}
        empty |= {"findings": [found], "dropped": [], "scaled": [], "not_tested": []}
        print(json.dumps(empty, ensure_ascii=False, indent=2))
    else:
        say_error(error.text())
    return UNREAD


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one step")
    return number
