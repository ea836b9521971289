"""burnish schema: JSON schema of the config, for editors of YAML files."""

from __future__ import annotations

import argparse
import json

from burnish.config.explain import LANGUAGES
from burnish.config.jobs import JOBS


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON schema of the config, for YAML editors",
        description="Prints the JSON schema of a job's config. With this first line in a YAML file, editors complete,"
        " document and check its keys:\n  # yaml-language-server: $schema=burnish.schema.json",
    )
    parser.add_argument("job", nargs="?", default="train", choices=list(JOBS), help="train (default), sft, ...")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the descriptions")


def run(args: argparse.Namespace) -> int:
    from burnish.config.schema import config_schema

    print(json.dumps(config_schema(args.job, args.lang), ensure_ascii=False, indent=1))
    return 0
