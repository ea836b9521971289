"""burnish convert: translate a verl, OpenRLHF or MindSpeed RL command to Burnish's keys, with a report per setting."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from burnish.cli.launch_input import USAGE, add_trust, add_words, not_translated, translate_input
from burnish.cli.layout import wrap, wrap_setting
from burnish.cli.run import describe_blockers
from burnish.dialects.report import (
    BLOCKING,
    CONVERTED,
    INERT,
    KEPT,
    PENDING,
    REFUSED,
    STATUSES,
    Item,
    Translation,
    missing_keys,
    setting_text,
    summarize,
    without_secret,
)
from burnish.errors import UserError
from burnish.redact import HIDDEN, redact


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="translate a launch command of verl, OpenRLHF or MindSpeed RL to Burnish's keys",
        description=f"burnish convert [--json | --yaml] [--all] {USAGE}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: dialect, job, config, report")
    parser.add_argument("--yaml", action="store_true", help="print only the config")
    parser.add_argument(
        "--all", action="store_true", help="also list settings that stay the same, and defaults that were set"
    )
    add_trust(parser)
    add_words(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or that of `burnish run`: 3 a setting refused, 4 not supported yet, 2 cannot be translated."""
    from burnish.log.console import say_error

    try:
        launch_input = translate_input(args.words, args.assume, trust=args.trust)
    except UserError as error:
        say_error(error.text())
        return not_translated(error)
    if args.json:
        objects = [as_object(translation) for translation in launch_input.translations]
        output = objects[0] if len(objects) == 1 else {"commands": objects, "notes": []}
        output["notes"] += launch_input.notes
        print(json.dumps(output, ensure_ascii=False, indent=2, default=str))
    else:
        for translation in launch_input.translations:
            if args.yaml:
                _warn_of_blockers(translation)
                print(_config_text(translation), end="")
            else:
                show(translation, show_all=args.all)
        for note in launch_input.notes:
            say_error(note)
    return launch_input.run_status


def as_object(translation: Translation) -> dict[str, Any]:
    """The JSON object of one command."""
    return {
        "dialect": translation.dialect,
        "job": translation.job,
        "notes": translation.notes,
        "config": redact(translation.config()),
        "report": [item.plain() for item in translation.items],
    }


def show(translation: Translation, *, show_all: bool = False) -> None:
    """Print the summary, what the run refuses, what changed, and the config; with `show_all` the rest too."""
    print(wrap(summarize(translation)))
    for note in translation.notes:
        print(wrap(note))
    missing = missing_keys(translation)
    if missing:
        print(wrap(f"Not set, but required by `burnish {translation.job}`: {', '.join(missing)}."))
    if translation.blockers():
        print(wrap(f"`burnish run` does not start with this command (exit status {translation.run_status:d})."))
    written = [item for item in translation.items if item.explicit or item.status in BLOCKING]
    for status in reversed(STATUSES):
        if status != KEPT or show_all:
            _print_section(_HEADINGS[status], [item for item in written if item.status == status])
    defaults = [item for item in translation.items if item not in written]
    num_kept = sum(item.status == KEPT for item in written)
    if show_all:
        _print_section("defaults that are set explicitly", [item for item in defaults if item.status != INERT])
        _print_section("defaults without effect", [item for item in defaults if item.status == INERT])
    elif num_kept or defaults:
        print(f"\n{wrap(f'--all also lists {num_kept} kept settings and {len(defaults)} defaults.')}")
    print(f"\n{_config_text(translation)}", end="")


_HEADINGS = {
    KEPT: "kept",
    CONVERTED: "converted",
    INERT: "without effect",
    PENDING: "not supported yet",
    REFUSED: "refused",
}


def _print_section(title: str, items: list[Item]) -> None:
    if items:
        print("\n".join([f"\n{title} ({len(items)})", *map(_describe, items)]))


def _warn_of_blockers(translation: Translation) -> None:
    from burnish.log.console import say_error

    if translation.blockers():
        say_error(f"`burnish run` does not start: {describe_blockers(translation)}")


def _config_text(translation: Translation) -> str:
    """The config as YAML, with a comment on how to use it."""
    command = f"# burnish {translation.job} --config-path DIR --config-name NAME,"
    config = yaml.safe_dump(redact(translation.config()), sort_keys=False, allow_unicode=True)
    hidden = f"# {HIDDEN}: a secret that is not printed; ${{oc.env:NAME}} reads it from the environment\n"
    return f"{command}\n# with this file as DIR/NAME.yaml\n{hidden if HIDDEN in config else ''}{config}"


def _describe(item: Item) -> str:
    """A setting, its equivalent where that differs, and the reason, on lines of their own."""
    lines = [wrap_setting(setting_text(item.theirs, item.value))]
    same = item.ours == item.theirs and (item.status == KEPT or str(item.ours_value) == str(item.value))
    if item.ours is not None and item.status != REFUSED and not same:
        lines.append(wrap_setting(f"-> {item.ours}={without_secret(item.ours, item.ours_value)}", "      "))
    if item.why:
        lines.append(wrap(item.why, "      "))
    return "\n".join(lines)
