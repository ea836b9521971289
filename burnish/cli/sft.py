"""burnish sft: supervised fine-tuning."""

from __future__ import annotations

import argparse

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
        "sft",
        help="supervised fine-tuning",
        description="Fine-tunes a model on examples. `burnish explain --job sft` documents the keys.",
    )
    add_config_arguments(parser)
    add_plain(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_config(args, "sft")
    if loaded is None:
        return 0
    from burnish.log.console import activity

    run_folder = loaded.cfg.trainer.default_local_dir
    with plain_output(args.plain), messages_on_stderr(args.json), naming_last_checkpoint(run_folder):
        with activity("loading PyTorch", shown="console" in loaded.cfg.trainer.logger):
            from burnish.jobs.sft.fit import sft_loaded  # imports torch, so only after the config is valid
        result = sft_loaded(loaded)
    if args.json:
        print_json(result)
    return result.status
