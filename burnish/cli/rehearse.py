"""burnish rehearse: run a few steps of a launch command on this machine, with stand-ins for missing models and data."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from burnish.cli.launch_input import USAGE, add_trust, add_words, looking_at, not_translated, translate_input
from burnish.cli.layout import wrap
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.rehearsal.report import Rehearsal


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
    add_trust(parser, ", run the model's own code, and Python files without isolation")
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 passed, 1 would fail, 2 cannot be translated, 3 a setting refused, 4 one not supported yet."""
    with looking_at(None, trust=args.trust):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        launch_input = translate_input(args.words, args.assume, trust=args.trust)
    except UserError as error:
        return _report_error(error, args.json)
    from burnish.rehearsal.rehearse import rehearse  # imports torch

    def progress(text: str) -> None:
        if not args.json:
            print(f"rehearse: {text} ...", file=sys.stderr, flush=True)

    reports = [
        rehearse(translation, steps=args.steps, live=args.live, folder=args.keep, trust=args.trust, progress=progress)
        for translation in launch_input.translations
    ]
    if args.json:
        objects = [report.to_json() for report in reports]
        output = objects[0] if len(objects) == 1 else {"commands": objects}
        print(json.dumps(output, ensure_ascii=False, indent=2, default=str))
    else:
        for report in reports:
            show(report, launch_input.notes)
    return max([*(report.exit_status for report in reports), *map(not_translated, launch_input.failures)])


def show(report: Rehearsal, notes: list[str]) -> None:
    """Print the verdict and what causes it, then the warnings, and every change made for the rehearsal."""
    steps = f"{report.steps} step{'s' if report.steps > 1 else ''}"
    _print_line(f"{report.verdict}.", "bold green" if report.passed else "bold red")
    _print_line(f"{report.dialect} -> `burnish {report.job}`: {steps} in {report.seconds:.1f} s")
    warnings = [f"{finding.where}: {finding.text}" for finding in report.findings if not finding.breaks]
    breaking = [f"{finding.where}: {finding.text}" for finding in report.findings if finding.breaks]
    unsupported = {_key(line) for line in report.unsupported}
    dropped = [line for line in report.dropped if _key(line) not in unsupported]
    sections = (
        ("refused", report.refused, "red"),
        ("not supported yet, left out here", report.unsupported, "red"),
        ("the real run would fail", breaking, "red"),
        ("warnings", warnings, "yellow"),
        ("stand-ins", report.stand_ins, ""),
        ("scaled down", report.scaled, ""),
        ("reduced to this machine", report.folded, ""),
        ("changed here", report.left_out, ""),
        ("not supported on this machine", dropped, ""),
        ("no effect in the real run either", report.inert, ""),
        ("not tested", report.not_tested, ""),
        ("notes on the script", notes, ""),
    )
    for title, lines, style in sections:
        if lines:
            _print_line(f"{title} ({len(lines)})", style or "dim")
            for line in lines:
                _print_line(wrap(line, "  ", "      "), style)


def _key(line: str) -> str:
    """The key or flag at the start of a line."""
    return re.split(r"[=: ]", line, maxsplit=1)[0]


def _print_line(text: str, style: str = "") -> None:
    """Print wrapped text as it is, so that no key is broken."""
    from burnish.log.console import Console

    Console().print(text, style=style or None, soft_wrap=True)


def _report_error(error: UserError, as_json: bool) -> int:
    from burnish.log.console import say_error

    if as_json:
        finding = {"where": "reading", "text": error.text(), "breaks": True}
        output: dict[str, Any] = {"dialect": None, "job": None, "steps": 0, "passed": False, "seconds": 0.0}
        output |= {"findings": [finding], "dropped": [], "scaled": [], "not_tested": []}
        print(json.dumps(output, ensure_ascii=False, indent=2))
    else:
        say_error(error.text())
    return not_translated(error)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
