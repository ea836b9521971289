"""burnish generate: sample responses to a file of prompts."""

from __future__ import annotations

import argparse

from burnish.config import load


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="sample responses to a file of prompts",
        description="burnish generate model.path=MODEL data.path=PROMPTS data.output_path=OUT.parquet [key=value ...]",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the config tree")
    parser.add_argument("--config-path", metavar="DIR", help="folder of YAML configs")
    parser.add_argument("--config-name", metavar="NAME", help="YAML config in that folder, with or without .yaml")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config and stop")


def run(args: argparse.Namespace) -> int:
    loaded = load(args.overrides, config_path=args.config_path, config_name=args.config_name, job="generate")
    if args.cfg:
        print(loaded.yaml(), end="")
        return 0
    from burnish.jobs.generate import generate_loaded  # imports torch, so only after the config is valid

    generate_loaded(loaded)
    return 0
