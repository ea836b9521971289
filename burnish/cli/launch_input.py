"""Input of convert, doctor and rehearse: a launch command after --, a script, or a YAML; each is translated.

These commands only look at their input. Without --trust, a script or YAML sees no secrets and no private files.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from burnish.dialects.report import Translation
from burnish.dialects.translate import knows_command, translate_command, translate_yaml
from burnish.dialects.yaml_file import reading_only
from burnish.errors import ExitStatus, NotSupportedYet, UserError

USAGE = "-- COMMAND ... | SCRIPT.sh [ARGUMENTS] | FILE.yaml [key=value ...]"
MAX_LAUNCHES = 50  # commands of a script that are translated
_HINT = "burnish convert -- python3 -m verl.trainer.main_ppo key=value ..."


@dataclass
class LaunchInput:
    """One translation per launch command. `notes` say where a recorded script may differ from its real run."""

    translations: list[Translation]
    notes: list[str] = field(default_factory=list)


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add --as, for commands that translate."""
    parser.add_argument(
        "--as",
        dest="assume",
        metavar="verl==VERSION",
        help="use the defaults of this version of verl, not of the one that the command's keys imply",
    )


def add_trust(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add --trust, for commands that only look at their input."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help=f"the input is yours: show it your environment and files{more}",
    )


@contextmanager
def looking_at(file: str | None, *, trust: bool) -> Iterator[None]:
    """Inside the context, configs see no secrets of the environment; of `file`, only those near it are read."""
    from burnish.cli.scripts.visible import Visible, without_secrets

    with without_secrets(trust):
        if file is None or trust:
            yield
            return
        path = Path(file).expanduser().absolute()
        visible = Visible.of(path, Path.cwd())
        with reading_only(lambda other: other.resolve() == path.resolve() or visible.contains(other)):
            yield


def add_words(parser: argparse.ArgumentParser) -> None:
    """Collect everything after the options, including words with dashes."""
    add_version(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=USAGE)


def translate_input(words: Sequence[str], assume: str | None = None, *, trust: bool = False) -> LaunchInput:
    """Translate the arguments of the command line. Scripts are recorded, not run. UserError if not understood.

    `assume` is the argument of --as.
    """
    with looking_at(words[0] if words and os.path.isfile(words[0]) else None, trust=trust):
        return _translate(words, assume, trust)


def _translate(words: Sequence[str], assume: str | None, trust: bool) -> LaunchInput:
    if words[:1] == ["--"] or not words:
        if not words[1:]:
            raise UserError("no command to translate", hint=_HINT)
        return LaunchInput([translate_command(words[1:], assume=assume)])
    name, rest = words[0], list(words[1:])
    if name.endswith((".yaml", ".yml")):
        return LaunchInput([translate_yaml(_existing_file(name), rest, assume)])
    if name.endswith(".sh") or (os.path.isfile(name) and not name.endswith(".py")):
        return _translate_script(_existing_file(name), rest, assume, trust)
    return LaunchInput([translate_command(words, assume=assume)])


def not_translated(error: UserError) -> ExitStatus:
    """The exit status of a command that cannot be translated."""
    return ExitStatus.UNSUPPORTED if isinstance(error, NotSupportedYet) else ExitStatus.USAGE


def _existing_file(name: str) -> str:
    if not os.path.isfile(name):
        raise UserError(f"no such file: {name}", hint=_HINT)
    return name


def _translate_script(path: str, args: list[str], assume: str | None, trust: bool) -> LaunchInput:
    """Translate the launch commands that a script would start; its other commands are ignored."""
    from burnish.cli.scripts.record import record_script

    recording = record_script(path, args, trust=trust)
    launches = [command for command in recording if knows_command(command.words)]
    if not launches:
        others = ", ".join(dict.fromkeys(command.words[0] for command in recording)) or "nothing"
        raise UserError(f"{path} starts no program that Burnish can translate (it starts: {others})", hint=_HINT)
    translations = []
    notes = list(recording.notes)
    if len(launches) > MAX_LAUNCHES:
        notes.append(f"the script starts {len(launches)} translatable commands; the first {MAX_LAUNCHES} are shown")
    for command in launches[:MAX_LAUNCHES]:
        variables = [f"{name}={value}" for name, value in command.env.items()]
        translations.append(translate_command([*variables, *command.words], command.cwd, assume))
    return LaunchInput(translations, notes)
