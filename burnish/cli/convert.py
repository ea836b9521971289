"""burnish convert: translate a verl, OpenRLHF or MindSpeed RL command to Burnish's keys, with a report per setting."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from burnish.cli.launch_input import USAGE, add_words, translate_input
from burnish.dialects.report import REFUSED, STATUSES, Item, Translation
from burnish.errors import UserError

NOT_TRANSLATED = 2
PAGE_WIDTH = 160  # columns of the table if the output is not a terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="translate a launch command of verl, OpenRLHF or MindSpeed RL to Burnish's keys",
        description=f"burnish convert [--json | --yaml] [--all] {USAGE}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: dialect, job, config, report")
    parser.add_argument("--yaml", action="store_true", help="print only the config")
    parser.add_argument("--all", action="store_true", help="also list the defaults that were set explicitly")
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 nothing refused, 3 a setting refused, 2 the command cannot be translated."""
    from burnish.log.console import say_error

    try:
        launch_input = translate_input(args.words)
    except UserError as error:
        say_error(error.text())
        return NOT_TRANSLATED
    if args.json:
        objects = [as_object(translation) for translation in launch_input.translations]
        output = objects[0] if len(objects) == 1 else {"commands": objects}
        print(json.dumps(output, ensure_ascii=False, indent=2, default=str))
    else:
        for translation in launch_input.translations:
            show(translation, config_only=args.yaml, show_defaults=args.all)
        for note in launch_input.notes:
            say_error(note)
    return max(translation.exit_status for translation in launch_input.translations)


def as_object(translation: Translation) -> dict[str, Any]:
    """The JSON object of one command."""
    return {
        "dialect": translation.dialect,
        "job": translation.job,
        "config": translation.config(),
        "report": [item.plain() for item in translation.items],
    }


def show(translation: Translation, *, config_only: bool = False, show_defaults: bool = False) -> None:
    """Print the config as YAML, and the report unless `config_only`."""
    from burnish.log.console import say

    print(f"# burnish {translation.job} --config-path DIR --config-name NAME, with this file as DIR/NAME.yaml")
    print(yaml.safe_dump(translation.config(), sort_keys=False, allow_unicode=True), end="")
    if config_only:
        return
    items = [item for item in translation.items if item.explicit or show_defaults or item.status == REFUSED]
    num_hidden = len(translation.items) - len(items)
    _print_table(items)
    if num_hidden:
        say(f"{num_hidden} defaults of {translation.dialect} differ from Burnish's and are set; --all lists them.")
    counts = ", ".join(f"{translation.count(status)} {status}" for status in STATUSES)
    say(f"{translation.dialect} -> `burnish {translation.job}`: {counts}.")


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
        console.print(table, width=None if console.is_terminal else PAGE_WIDTH)


def _setting(name: str, value: Any) -> str:
    if value is None:
        return name
    return f"{name} {value}" if name.startswith("-") else f"{name}={value}"


def _ours(item: Item) -> str:
    if item.ours is None or item.status == REFUSED:
        return ""
    same = item.ours == item.theirs and str(item.ours_value) == str(item.value)
    return "same" if same else f"{item.ours}={item.ours_value}"
