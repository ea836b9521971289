"""What a command is asked about: a launch command after --, a script, or a YAML; each as translations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.read import knows_command, translate_command, translate_yaml
from burnish.dialects.report import Translation
from burnish.errors import UserError

USAGE = "-- COMMAND ... | SCRIPT.sh [ARGUMENTS] | FILE.yaml [key=value ...]"
_HINT = "burnish convert -- python3 -m verl.trainer.main_ppo key=value ..."


@dataclass
class Asked:
    """The translations, one for each launch command; `notes` say where a script's reading may differ from its run."""

    translations: list[Translation]
    notes: list[str] = field(default_factory=list)


def add_words(parser: argparse.ArgumentParser) -> None:
    """Everything after the options, with its own dashes."""
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=USAGE)


def read_asked(words: Sequence[str]) -> Asked:
    """UserError if it cannot be read. A script is never run for real."""
    if words[:1] == ["--"] or not words:
        return Asked([translate_command(_some(words[1:]))])
    name, rest = words[0], list(words[1:])
    if name.endswith((".yaml", ".yml")):
        return Asked([translate_yaml(_file(name), rest)])
    if name.endswith(".sh") or (os.path.isfile(name) and not name.endswith(".py")):
        return _script(_file(name), rest)
    return Asked([translate_command(words)])


def _some(words: Sequence[str]) -> Sequence[str]:
    if not words:
        raise UserError("no command is given", hint=_HINT)
    return words


def _file(name: str) -> str:
    if not os.path.isfile(name):
        raise UserError(f"no such file: {name}", hint=_HINT)
    return name


def _script(path: str, args: list[str]) -> Asked:
    """The launch commands that it would start; what else it does is none of ours."""
    from burnish.cli.recording import record_script

    recording = record_script(path, args)
    launches = [one for one in recording if knows_command(one.words)]
    if not launches:
        others = ", ".join(dict.fromkeys(one.words[0] for one in recording)) or "nothing"
        raise UserError(f"{path} starts no program that Burnish reads (it starts: {others})", hint=_HINT)
    translations = []
    for one in launches:
        variables = [f"{name}={value}" for name, value in one.env.items()]
        translations.append(translate_command([*variables, *one.words], one.cwd))
    return Asked(translations, list(recording.notes))
