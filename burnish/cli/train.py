"""burnish train: RL training."""

from __future__ import annotations

import argparse

from burnish.config import load


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a policy with reinforcement learning",
        description="burnish train a.b.c=value +new=x ~gone ++force=y [--config-path DIR --config-name NAME]",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the config tree")
    parser.add_argument("--config-path", metavar="DIR", help="folder of YAML configs")
    parser.add_argument("--config-name", metavar="NAME", help="YAML config in that folder, with or without .yaml")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config and stop")


def run(args: argparse.Namespace) -> int:
    loaded = load(args.overrides, config_path=args.config_path, config_name=args.config_name)
    if args.cfg:
        print(loaded.yaml(), end="")
        return 0
    from burnish.loop.api import train_loaded  # imports torch, so only after the config is valid

    result = train_loaded(loaded)
    return result.status
