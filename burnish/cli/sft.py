"""burnish sft: supervised fine-tuning."""

from __future__ import annotations

import argparse

from burnish.config import load


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "sft",
        help="supervised fine-tuning",
        description="burnish sft model.partial_pretrain=MODEL data.train_files=FILE [key=value ...]",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the config tree")
    parser.add_argument("--config-path", metavar="DIR", help="folder of YAML configs")
    parser.add_argument("--config-name", metavar="NAME", help="YAML config in that folder, with or without .yaml")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config and stop")


def run(args: argparse.Namespace) -> int:
    loaded = load(args.overrides, config_path=args.config_path, config_name=args.config_name, job="sft")
    if args.cfg:
        print(loaded.yaml(), end="")
        return 0
    from burnish.jobs.sft.fit import sft_loaded  # imports torch, so only after the config is valid

    result = sft_loaded(loaded)
    return result.status
