"""burnish convert: what a command of verl, OpenRLHF or MindSpeed RL means in Burnish's keys, setting by setting."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from burnish.cli.asked import USAGE, add_words, read_asked
from burnish.dialects.report import REFUSED, STATUSES, Item, Translation
from burnish.errors import UserError

UNREAD = 2
PAGE = 160  # columns of the table where there is no terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="show a launch command of verl, OpenRLHF or MindSpeed RL in Burnish's keys",
        description=f"burnish convert [--json | --yaml] [--all] {USAGE}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: dialect, job, config, report")
    parser.add_argument("--yaml", action="store_true", help="print the config alone")
    parser.add_argument("--all", action="store_true", help="list the defaults that were written out, too")
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 nothing refused, 3 something refused, 2 nobody reads the command."""
    from burnish.log.console import say_error

    try:
        asked = read_asked(args.words)
    except UserError as error:
        say_error(error.text())
        return UNREAD
    if args.json:
        objects = [as_object(one) for one in asked.translations]
        whole = objects[0] if len(objects) == 1 else {"commands": objects}
        print(json.dumps(whole, ensure_ascii=False, indent=2, default=str))
    else:
        for one in asked.translations:
            show(one, alone=args.yaml, everything=args.all)
        for note in asked.notes:
            say_error(note)
    return max(one.exit_status for one in asked.translations)


def as_object(translation: Translation) -> dict[str, Any]:
    """What --json prints."""
    return {
        "dialect": translation.dialect,
        "job": translation.job,
        "config": translation.config(),
        "report": [item.plain() for item in translation.items],
    }


def show(translation: Translation, *, alone: bool = False, everything: bool = False) -> None:
    """The config as YAML and, unless it is wanted alone, the report."""
    from burnish.log.console import say

    print(f"# burnish {translation.job} --config-path DIR --config-name NAME, where this is DIR/NAME.yaml")
    print(yaml.safe_dump(translation.config(), sort_keys=False, allow_unicode=True), end="")
    if alone:
        return
    items = [item for item in translation.items if item.given or everything or item.status == REFUSED]
    folded = len(translation.items) - len(items)
    _print_table(items)
    if folded:
        say(f"{folded} defaults of {translation.dialect} that differ from ours are written out; --all lists them.")
    counts = ", ".join(f"{translation.count(status)} {status}" for status in STATUSES)
    say(f"{translation.dialect}, as `burnish {translation.job}`: {counts}.")


def _print_table(items: list[Item]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    for status in STATUSES:
        rows = [item for item in items if item.status == status]
        if not rows:
            continue
        table = Table(title=f"{status} ({len(rows)})", title_justify="left", expand=False)
        for column in ("theirs", "ours", "why"):
            table.add_column(column, overflow="fold")
        for item in rows:
            table.add_row(_setting(item.theirs, item.value), _ours(item), item.why)
        console.print(table, width=None if console.is_terminal else PAGE)


def _setting(name: str, value: Any) -> str:
    if value is None:
        return name
    return f"{name} {value}" if name.startswith("-") else f"{name}={value}"


def _ours(item: Item) -> str:
    if item.ours is None or item.status == REFUSED:
        return ""
    same = item.ours == item.theirs and str(item.ours_value) == str(item.value)
    return "the same" if same else f"{item.ours}={item.ours_value}"
