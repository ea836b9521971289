"""burnish explain: documentation, allowed values and status of config keys."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from burnish.cli.layout import wrap
from burnish.config import load
from burnish.config.explain import LANGUAGES, Explained, describe_all, describe_matching, describe_section
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
        "no_effect": "no effect in some runs",
        "unsupported": "not supported",
        "verl": "in verl",
        "aliases": "also",
    },
    "zh": {
        "type": "类型",
        "default": "默认值",
        "follows": "跟随",
        "allowed": "可选值",
        "status": "状态",
        "no_effect": "部分运行中无效",
        "unsupported": "不支持",
        "verl": "verl 默认",
        "aliases": "别名",
    },
}
_KINDS = {
    "en": {"conditional": "acts in some runs"},
    "zh": {
        "acts": "生效",
        "conditional": "在部分运行中生效",
        "pending": "尚未实现",
        "refused": "不支持",
        "inert": "此处无效",
    },
}


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `explain` to the command line."""
    parser = subparsers.add_parser("explain", help="document config keys", description=__doc__)
    parser.add_argument(
        "keys",
        nargs="*",
        metavar="KEY",
        help="keys, ends of keys, or sections; with key=value words, the status in a run with these settings",
    )
    parser.add_argument("--config-path", metavar="DIR", help="folder of YAML configs, for the status in such a run")
    parser.add_argument("--config-name", metavar="NAME", help="YAML config in that folder")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the text")
    parser.add_argument("--json", action="store_true", help="print a JSON list; without keys, of all keys")
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
    if not args.keys and args.json:
        _print_json(describe_all(args.lang, args.job or "train"))
        return 0
    if not args.keys:
        _print_sections(args)
        return 0
    explained: list[Explained] = []
    num_unknown = 0
    cfg = _config_of_run(args)
    for key in [word for word in args.keys if "=" not in word]:
        try:
            explained += explain(key, args.lang, args.job, cfg)
        except UserError as error:
            num_unknown += 1
            print(error, file=sys.stderr)
    if args.json:
        _print_json(explained)
    else:
        print("\n\n".join(render(row, args.lang) for row in explained))
    return 2 if num_unknown else 0


def _print_json(rows: list[Explained]) -> None:
    print(json.dumps([row.as_dict() for row in rows], ensure_ascii=False, indent=2))


def _config_of_run(args: argparse.Namespace) -> Any:
    """The config of the run that the user describes; None without one."""
    overrides = [word for word in args.keys if "=" in word]
    if not overrides and args.config_name is None:
        return None
    args.job = args.job or "train"
    return load(overrides, config_path=args.config_path, config_name=args.config_name, job=args.job, check=False).cfg


def explain(key: str, lang: str, job: str | None, cfg: Any = None) -> list[Explained]:
    """Describe a key, or all keys of a section, of `job` or of the first job that has it; of the end of a key, all."""
    rows: list[Explained] = []
    first_error: UserError | None = None
    for name in [job] if job else JOBS:
        if rows and "." in key:
            break
        try:
            if key in tree(name).sections:
                return describe_section(key, lang, name, cfg)
            rows += describe_matching(key, lang, name, cfg)
        except UserError as error:
            first_error = first_error or error
    if not rows:
        assert first_error is not None
        raise first_error
    return rows


def render(row: Explained, lang: str) -> str:
    """Format one key as text."""
    labels = _LABELS[lang]
    status = _KINDS[lang].get(row.status, row.status) + (f": {row.why}" if row.why else "")
    lines = [row.key if row.job == "train" else f"{row.key}  [{row.job}]", wrap(row.doc, "  ")]

    def add(label: str, text: str) -> None:
        lines.append(wrap(f"{labels[label]}: {text}", "  ", "    "))

    add("type", row.type + (f" {row.bounds}" if row.bounds else ""))
    if row.follows is not None:
        add("follows", row.follows)
    else:
        add("default", written_as(row.default))
    if row.verl_default is not SAME:
        add("verl", written_as(row.verl_default))
    if row.allowed:
        lines.append(f"  {labels['allowed']}:")
        lines += [wrap(f"{name}  {line}".rstrip(), "    ", "      ") for name, line in row.allowed.items()]
    add("status", status)
    for reason in row.no_effect_if:
        add("no_effect", reason)
    if row.unsupported_values:
        add("unsupported", ", ".join(f"{value}: {why}" for value, why in row.unsupported_values.items()))
    if row.aliases:
        add("aliases", ", ".join(row.aliases))
    return "\n".join(lines)


def _print_pending(args: argparse.Namespace) -> int:
    rows = pending_keys(args.job or "train")
    if args.json:
        print(json.dumps([{"key": key, "why": why} for key, why in rows], indent=2))
        return 0
    for key, why in rows:
        print(f"{key}: {why}")  # one line each, for grep
    print(f"{len(rows)} keys and values are not supported yet.", file=sys.stderr)
    return 0


def _print_sections(args: argparse.Namespace) -> None:
    for section in tree(args.job or "train").sections.values():
        print(wrap(f"{section.key}  {section.doc}", hanging="    "))
