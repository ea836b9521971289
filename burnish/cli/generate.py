"""burnish generate: sample responses to a file of prompts."""

from __future__ import annotations

import argparse

from burnish.cli.parser import add_config_arguments, load_config, messages_on_stderr, print_json


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="sample responses to a file of prompts",
        description="Samples responses to the prompts of a file, and writes the rows with their responses."
        " `burnish explain --job generate` documents the keys.",
    )
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_config(args, "generate")
    if loaded is None:
        return 0
    from burnish.log.console import activity

    with messages_on_stderr(args.json):
        with activity("loading PyTorch"):
            from burnish.jobs.generate import generate_loaded  # imports torch, so only after the config is valid
        result = generate_loaded(loaded)
    if args.json:
        print_json({"path": result.path, "rows": len(result.rows), "n_samples": loaded.cfg.data.n_samples})
    return 0
