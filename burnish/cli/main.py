"""The `burnish` command. Each subcommand has a module of its name."""

from __future__ import annotations

import argparse
import importlib
import sys

from burnish.errors import StopNow, UserError

COMMANDS = (
    *("train", "sft", "generate", "eval", "export", "demo", "data", "explain"),
    *("run", "convert", "rehearse", "doctor"),
)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 success, 1 user error, 2 invalid arguments, 124 run hung, 130 Ctrl-C, 143 SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="burnish", description="Reinforcement-learning post-training of language models."
    )
    parser.add_argument("--traceback", action="store_true", help="show the traceback of errors")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: importlib.import_module(f"burnish.cli.{name}") for name in COMMANDS}
    for module in modules.values():
        module.add_parser(subparsers)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        return modules[args.command].run(args)
    except UserError as error:
        if args.traceback:
            raise
        _print_error(error)
        return 1
    except StopNow as stop:
        return stop.status
    except KeyboardInterrupt:
        return 130


def _print_error(error: UserError) -> None:
    from burnish.log.console import say_error  # imports rich, so only on errors

    say_error(error.text())


if __name__ == "__main__":
    sys.exit(main())
