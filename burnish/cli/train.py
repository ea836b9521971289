"""burnish train: RL training."""

from __future__ import annotations

import argparse
import sys

from burnish.cli.parser import (
    add_config_arguments,
    add_plain,
    load_config,
    messages_on_stderr,
    plain_output,
    print_json,
)
from burnish.loop.stop import naming_last_checkpoint


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a policy with reinforcement learning",
        description="Trains a policy with reinforcement learning. Overrides follow Hydra's grammar: a.b.c=value,"
        " +new=x, ~gone, ++force=y. `burnish explain` documents the keys.",
    )
    add_config_arguments(parser)
    add_plain(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_config(args, "train")
    if loaded is None:
        return 0
    from burnish.log.console import activity
    from burnish.loop.profiling import start_under_nsys

    start_under_nsys(loaded.cfg, sys.orig_argv)

    run_folder = loaded.cfg.trainer.default_local_dir
    with plain_output(args.plain), messages_on_stderr(args.json), naming_last_checkpoint(run_folder):
        with activity("loading PyTorch", shown="console" in loaded.cfg.trainer.logger):
            from burnish.loop.api import train_loaded  # imports torch, so only after the config is valid
        result = train_loaded(loaded)
    if args.json:
        print_json(result)
    return result.status
