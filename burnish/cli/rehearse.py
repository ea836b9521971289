"""burnish rehearse: run a few steps of a launch command on this machine, with stand-ins for missing models and data."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from burnish.cli.launch_input import USAGE, add_words, translate_input
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.rehearsal.report import Rehearsal

NOT_TRANSLATED = 2
PAGE_WIDTH = 140  # columns if the output is not a terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "rehearse",
        help="run a launch command for a few steps with a tiny stand-in model",
        description=f"burnish rehearse [--steps N] [--json] [--live] {USAGE}",
    )
    parser.add_argument("--steps", type=_positive, default=1, metavar="N", help="steps to run (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--live", action="store_true", help="call remote reward services")
    parser.add_argument("--keep", metavar="DIR", help="keep the created models, data and run in this folder")
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 passed, 1 the real run would fail, 2 the command cannot be translated, 3 a setting refused."""
    try:
        launch_input = translate_input(args.words)
    except UserError as error:
        return _report_error(error, args.json)
    from burnish.rehearsal.rehearse import rehearse  # imports torch

    reports = [
        rehearse(translation, steps=args.steps, live=args.live, folder=args.keep)
        for translation in launch_input.translations
    ]
    if args.json:
        objects = [report.to_json() for report in reports]
        output = objects[0] if len(objects) == 1 else {"commands": objects}
        print(json.dumps(output, ensure_ascii=False, indent=2, default=str))
    else:
        for report in reports:
            show(report, launch_input.notes)
    return max(report.exit_status for report in reports)


def show(report: Rehearsal, notes: list[str]) -> None:
    """Print the changes made for the rehearsal, what was not tested, and the findings."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PAGE_WIDTH
    steps = f"{report.steps} step{'s' if report.steps > 1 else ''}"
    console.print(f"{report.dialect} -> `burnish {report.job}`: {steps} in {report.seconds:.1f} s", style="bold")
    warnings = [f"{finding.where}: {finding.text}" for finding in report.findings if not finding.breaks]
    sections = (
        ("stand-ins", report.stand_ins, ""),
        ("scaled down", report.scaled, ""),
        ("reduced to this machine", report.folded, ""),
        ("dropped: not supported yet", report.dropped, ""),
        ("no effect here", report.inert, ""),
        ("not tested", report.not_tested, ""),
        ("notes on the script", notes, ""),
        ("warnings", warnings, "yellow"),
        ("refused", report.refused, "red"),
        ("the real run would fail", _breaking(report), "red"),
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


def _report_error(error: UserError, as_json: bool) -> int:
    from burnish.log.console import say_error

    if as_json:
        finding = {"where": "reading", "text": error.text(), "breaks": True}
        output: dict[str, Any] = {"dialect": None, "job": None, "steps": 0, "passed": False, "seconds": 0.0}
        output |= {"findings": [finding], "dropped": [], "scaled": [], "not_tested": []}
        print(json.dumps(output, ensure_ascii=False, indent=2))
    else:
        say_error(error.text())
    return NOT_TRANSLATED


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
