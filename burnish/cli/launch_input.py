"""Input of convert and rehearse: a launch command after --, a script, or a YAML; each is translated."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.report import Translation
from burnish.dialects.translate import knows_command, translate_command, translate_yaml
from burnish.errors import UserError

USAGE = "-- COMMAND ... | SCRIPT.sh [ARGUMENTS] | FILE.yaml [key=value ...]"
_HINT = "burnish convert -- python3 -m verl.trainer.main_ppo key=value ..."


@dataclass
class LaunchInput:
    """One translation per launch command. `notes` say where a recorded script may differ from its real run."""

    translations: list[Translation]
    notes: list[str] = field(default_factory=list)


def add_words(parser: argparse.ArgumentParser) -> None:
    """Collect everything after the options, including words with dashes."""
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=USAGE)


def translate_input(words: Sequence[str]) -> LaunchInput:
    """Translate the arguments of the command line. Scripts are recorded, not run. UserError if not understood."""
    if words[:1] == ["--"] or not words:
        if not words[1:]:
            raise UserError("no command to translate", hint=_HINT)
        return LaunchInput([translate_command(words[1:])])
    name, rest = words[0], list(words[1:])
    if name.endswith((".yaml", ".yml")):
        return LaunchInput([translate_yaml(_existing_file(name), rest)])
    if name.endswith(".sh") or (os.path.isfile(name) and not name.endswith(".py")):
        return _translate_script(_existing_file(name), rest)
    return LaunchInput([translate_command(words)])


def _existing_file(name: str) -> str:
    if not os.path.isfile(name):
        raise UserError(f"no such file: {name}", hint=_HINT)
    return name


def _translate_script(path: str, args: list[str]) -> LaunchInput:
    """Translate the launch commands that a script would start; its other commands are ignored."""
    from burnish.cli.scripts.record import record_script

    recording = record_script(path, args)
    launches = [command for command in recording if knows_command(command.words)]
    if not launches:
        others = ", ".join(dict.fromkeys(command.words[0] for command in recording)) or "nothing"
        raise UserError(f"{path} starts no program that Burnish can translate (it starts: {others})", hint=_HINT)
    translations = []
    for command in launches:
        variables = [f"{name}={value}" for name, value in command.env.items()]
        translations.append(translate_command([*variables, *command.words], command.cwd))
    return LaunchInput(translations, list(recording.notes))
