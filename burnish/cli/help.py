"""burnish help: the help of a command."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "help", help="show the help of a command", description="Shows the help of a command, or of Burnish."
    )
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, such as train or `data gsm8k`")


def run(args: argparse.Namespace) -> int:
    from burnish.cli.main import main

    return main([*args.words, "--help"])
