"""burnish explain: documentation, allowed values and status of config keys."""

from __future__ import annotations

import argparse
import json
import sys

from burnish.config.explain import LANGUAGES, Explained, describe, describe_section
from burnish.config.fields import SAME
from burnish.config.jobs import JOBS
from burnish.config.status import pending_keys
from burnish.config.tree import tree
from burnish.config.values import written_as
from burnish.errors import UserError

_LABELS = {
    "en": {
        "type": "type",
        "default": "default",
        "follows": "follows",
        "allowed": "allowed",
        "status": "status",
        "later": "not supported yet",
        "verl": "in verl",
        "aliases": "also",
    },
    "zh": {
        "type": "类型",
        "default": "默认值",
        "follows": "跟随",
        "allowed": "可选值",
        "status": "状态",
        "later": "尚未实现",
        "verl": "verl 默认",
        "aliases": "别名",
    },
}
_KINDS = {"en": {}, "zh": {"acts": "生效", "pending": "尚未实现", "inert": "此处无效"}}


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `explain` to the command line."""
    parser = subparsers.add_parser("explain", help="document config keys", description=__doc__)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="keys or sections, as written on the command line")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the text")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--pending", action="store_true", help="list the keys that are not supported yet")
    parser.add_argument(
        "--job", choices=list(JOBS), default=None, help="the job of the keys; default: the first job that has them"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the documentation of keys. Exit status 2 if a key is unknown."""
    if args.pending:
        return _print_pending(args)
    if not args.keys:
        _print_sections(args)
        return 0
    explained: list[Explained] = []
    num_unknown = 0
    for key in args.keys:
        try:
            explained += explain(key, args.lang, args.job)
        except UserError as error:
            num_unknown += 1
            print(error, file=sys.stderr)
    if args.json:
        print(json.dumps([row.as_dict() for row in explained], ensure_ascii=False, indent=2))
    else:
        print("\n\n".join(render(row, args.lang) for row in explained))
    return 2 if num_unknown else 0


def explain(key: str, lang: str, job: str | None) -> list[Explained]:
    """Describe a key, or all keys of a section, of `job` or of the first job that has it."""
    first_error: UserError | None = None
    for name in [job] if job else JOBS:
        try:
            if key in tree(name).sections:
                return describe_section(key, lang, name)
            return [describe(key, lang, name)]
        except UserError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def render(row: Explained, lang: str) -> str:
    """Format one key as text."""
    labels = _LABELS[lang]
    status = _KINDS[lang].get(row.status, row.status) + (f": {row.why}" if row.why else "")
    lines = [row.key if row.job == "train" else f"{row.key}  [{row.job}]", f"  {row.doc}"]
    lines.append(f"  {labels['type']}: {row.type}" + (f" {row.bounds}" if row.bounds else ""))
    if row.follows is not None:
        lines.append(f"  {labels['follows']}: {row.follows}")
    else:
        lines.append(f"  {labels['default']}: {written_as(row.default)}")
    if row.verl_default is not SAME:
        lines.append(f"  {labels['verl']}: {written_as(row.verl_default)}")
    if row.allowed:
        lines.append(f"  {labels['allowed']}:")
        lines += [f"    {name}  {line}".rstrip() for name, line in row.allowed.items()]
    lines.append(f"  {labels['status']}: {status}")
    if row.pending_values:
        lines.append(
            f"  {labels['later']}: {', '.join(f'{value}: {why}' for value, why in row.pending_values.items())}"
        )
    if row.aliases:
        lines.append(f"  {labels['aliases']}: {', '.join(row.aliases)}")
    return "\n".join(lines)


def _print_pending(args: argparse.Namespace) -> int:
    rows = pending_keys(args.job or "train")
    if args.json:
        print(json.dumps([{"key": key, "why": why} for key, why in rows], indent=2))
        return 0
    for key, why in rows:
        print(f"{key}: {why}")
    print(f"{len(rows)} keys and values are not supported yet.", file=sys.stderr)
    return 0


def _print_sections(args: argparse.Namespace) -> None:
    for section in tree(args.job or "train").sections.values():
        print(f"{section.key}  {section.doc}")
