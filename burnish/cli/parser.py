"""Command-line parsing: flags anywhere among overrides, suggestions for mistyped words, help that fits 80 columns."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from burnish.errors import UserError, nearest

if TYPE_CHECKING:
    from burnish.config import Loaded

WIDTH = 80


class HelpFormatter(argparse.HelpFormatter):
    """At most 80 columns. Indented lines of a description keep their line breaks."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(WIDTH, shutil.get_terminal_size().columns) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapped: list[str] = []
        for line in text.strip().splitlines():
            wrapped += [line] if line.startswith("  ") or not line else textwrap.wrap(line, width)
        return "\n".join(indent + line for line in wrapped)


class Parser(argparse.ArgumentParser):
    """Accepts flags anywhere among the words of a list, and suggests the nearest name for unknown ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Leaves no word unparsed: an unknown one is an error here, where the flags are known."""
        parsed, unknown = super().parse_known_args(self._flags_first(list(args or ())), namespace)
        for word in unknown:
            if word.startswith("-"):
                self._refuse_flag(word)
            self.error(f"unexpected argument: {word}")
        return parsed, []

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nType: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            problem = f"{value!r} is not one of {', '.join(choices)}{did_you_mean(str(value), choices)}"
            raise argparse.ArgumentError(action, problem)

    def _flags_first(self, words: list[str]) -> list[str]:
        """Flags, then the positional words: argparse takes a list only from one place. All after `--` is positional."""
        if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            return words  # the rest belongs to another command
        flags: list[str] = []
        positional: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                positional += words
                break
            if word.startswith("-") and word != "-":
                flags.append(self._with_value(word, words))
            else:
                positional.append(word)
        return [*flags, "--", *positional] if positional else flags

    def _with_value(self, word: str, rest: list[str]) -> str:
        """The flag as one word, with its value if it takes one from `rest`; the value may start with a dash."""
        name, equals, _ = word.partition("=")
        actions = self._actions_named(name)
        if not actions:
            self._refuse_flag(name)
        if equals or not rest or rest[0] == "--" or len(set(map(id, actions))) > 1:
            return word
        action = actions[0]
        optional = action.nargs == argparse.OPTIONAL and rest[0] in (action.choices or ())
        required = action.nargs is None and rest[0] not in self._option_string_actions
        return f"{name}={rest.pop(0)}" if optional or required else word

    def _actions_named(self, name: str) -> list[argparse.Action]:
        """The flag of this name, or all flags of which it is an abbreviation."""
        if name in self._option_string_actions:
            return [self._option_string_actions[name]]
        long = name.startswith("--")
        return [action for flag, action in self._option_string_actions.items() if long and flag.startswith(name)]

    def _refuse_flag(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        self.error(f"no such flag: {name}{did_you_mean(name, visible_flags(self))}")


def visible_flags(parser: argparse.ArgumentParser) -> list[str]:
    """The flags that the help lists."""
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return [flag for action in actions for flag in action.option_strings]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`. Did you mean ...?`, or nothing."""
    suggestion = nearest(word, known)
    return "" if suggestion is None else f". Did you mean {suggestion}?"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Overrides and Hydra's flags, for the commands that have a config."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the config tree")
    parser.add_argument("--config-path", "--config-dir", "-cp", "-cd", metavar="DIR", help="folder of YAML configs")
    parser.add_argument(
        "--config-name", "-cn", metavar="NAME", help="YAML config in that folder, with or without .yaml"
    )
    parser.add_argument(
        "--cfg", "-c", nargs="?", const="job", choices=["job"], help="print the composed config and stop"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object and nothing else")
    parser.add_argument("--resolve", action="store_true", help=argparse.SUPPRESS)  # --cfg always resolves


def add_plain(parser: argparse.ArgumentParser) -> None:
    """--plain, for the commands that train."""
    parser.add_argument("--plain", action="store_true", help="print a line per step, also on a terminal")


def load_config(args: argparse.Namespace, job: str) -> Loaded | None:
    """The checked config; with --cfg, print it and return None."""
    from burnish.config import load  # imports Hydra, which the help does not need

    options = {"config_path": args.config_path, "config_name": args.config_name, "job": job}
    if args.cfg is None:
        return load(args.overrides, **options)
    problem: UserError | None = None
    try:
        loaded = load(args.overrides, **options)
    except UserError as error:  # the composed config is shown even if a run would refuse it
        problem, loaded = error, load(args.overrides, **options, check=False)
    print(loaded.yaml(), end="")
    if problem is not None:
        from burnish.log.console import say_error

        say_error(f"`burnish {job}` would refuse this config:\n{problem.text()}")
    return None


@contextmanager
def messages_on_stderr(redirect: bool) -> Iterator[None]:
    """Print messages to standard error, if standard output is for a JSON object."""
    from burnish.log.console import get_console

    console = get_console()
    before = console.stderr
    console.stderr = before or redirect
    try:
        yield
    finally:
        console.stderr = before


@contextmanager
def plain_output(plain: bool) -> Iterator[None]:
    """Print plain lines instead of a live display, in child processes too."""
    from burnish.log.console import PLAIN

    before = os.environ.get(PLAIN)
    if plain:
        os.environ[PLAIN] = "1"
    try:
        yield
    finally:
        if plain and before is None:
            del os.environ[PLAIN]


def print_json(result: Any) -> None:
    """A result as one line of JSON; a dataclass becomes an object."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    print(json.dumps(_finite(result), default=str, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity; they become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
