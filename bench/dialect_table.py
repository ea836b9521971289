"""Translate every launch command in a folder of cases, and print the status of its settings.

    python bench/dialect_table.py [--cases ../shared/cases] [--write docs/dialects.md]

A case file has JSON lines: `name`, `entry` and `argv` of a command, or `file` and `config` of a YAML. With --write, the
table replaces what follows the marker in that page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from burnish.dialects.report import REFUSED, STATUSES, Translation
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.errors import UserError

MARKER = "<!-- cases: made by bench/dialect_table.py -->"
# Config groups, which do not configure a run by themselves.
PARTS = re.compile(r"configs/(model|datasets|envs|tools)/")
_MAX_LENGTH = 240
_PATH = re.compile(r"(?<![\w.~-])(?:/[\w.@-]+){2,}")


@dataclass(frozen=True)
class Row:
    """One case: its translation, or the error."""

    case: str
    translation: Translation | None = None
    error: str = ""


def rows(folder: Path) -> Iterator[Row]:
    """Every command and every run's YAML in the folder."""
    with tempfile.TemporaryDirectory() as trees:
        for path in sorted(folder.glob("*.jsonl")):
            cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            files = {id(case): _write(Path(trees) / case["version"], case) for case in cases if "config" in case}
            for case in cases:
                name = case.get("name") or case["file"]
                if not PARTS.search(name):
                    yield _row(f"{path.stem} {case['version']} {name}", case, files.get(id(case)))


def _write(tree: Path, case: dict[str, Any]) -> str:
    file = tree / case["file"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(case["config"], allow_unicode=True), encoding="utf-8")
    return str(file)


def _row(name: str, case: dict[str, Any], file: str | None) -> Row:
    try:
        if file is not None:
            return Row(name, translate_yaml(file))
        return Row(name, translate_command(["python3", "-m", case["entry"], *case["argv"]]))
    except UserError as error:
        return Row(name, error=_cell(error.text()))


def page(cases: list[Row]) -> str:
    """The table, the reasons for refusals, and the programs that are not supported."""
    head = f"| case | {' | '.join(STATUSES)} |\n|---|{'---|' * len(STATUSES)}\n"
    translated = [row for row in cases if row.translation is not None]
    table = "".join(f"| {row.case} | {' | '.join(_counts(row.translation))} |\n" for row in translated)
    refused = [line for row in translated for line in _refusals(row)] or ["Nothing.\n"]
    unsupported = [f"- {row.case}: {row.error}\n" for row in cases if row.translation is None] or ["None.\n"]
    return (
        f"{len(translated)} commands and configs are translated. Settings by status, with explicit defaults:\n\n"
        f"{head}{table}\n"
        f"### Refused settings\n\n{''.join(refused)}\n### Unsupported programs\n\n{''.join(unsupported)}"
    )


def _counts(translation: Translation) -> list[str]:
    return [str(translation.count(status)) for status in STATUSES]


def _refusals(row: Row) -> list[str]:
    items = [item for item in row.translation.items if item.status == REFUSED]
    return [f"- {row.case}: `{item.theirs}`: {_cell(item.why)}\n" for item in items]


def _cell(text: str) -> str:
    """One line of limited length, without absolute paths."""
    line = _PATH.sub("PATH", " ".join(text.split())).replace("|", "\\|").replace("<", "\\<")
    return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]} ..."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=Path(__file__).parents[2] / "shared" / "cases")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    if not args.cases.is_dir():
        print(f"{args.cases}: no such folder; use --cases FOLDER", file=sys.stderr)
        return 1
    text = page(list(rows(args.cases)))
    if args.write is None:
        print(text, end="")
        return 0
    head = args.write.read_text(encoding="utf-8").partition(MARKER)[0]
    args.write.write_text(f"{head}{MARKER}\n\n{text}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
