"""Input of convert, doctor and rehearse: a launch command after --, a script, or a YAML; each is translated.

These commands only look at their input. Without --trust, a script or YAML sees no secrets and no private files.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.dialects.report import Translation
from burnish.dialects.translate import find_programs, translate_command, translate_program, translate_yaml
from burnish.dialects.yaml_file import reading_only
from burnish.errors import ExitStatus, NotSupportedYet, UserError

if TYPE_CHECKING:
    from burnish.cli.scripts.record import Recording

USAGE = "-- COMMAND ... | SCRIPT.sh [ARGUMENTS] | FILE.yaml [key=value ...]"
MAX_LAUNCHES = 50  # commands of a script that are translated
_HINT = "burnish convert -- python3 -m verl.trainer.main_ppo key=value ..."
_SCRIPT_HINT = "NAME=value burnish convert SCRIPT.sh ARGUMENTS, with the variables and arguments that it needs"
# Training programs, in commands that no dialect can read; and programs whose arguments only mention others.
_TRAINING = re.compile(
    r"\b(?:verl\.(?:trainer|experimental)\.[\w.]+|recipe\.[\w.]*main\w*|openrlhf\.cli\.\w+"
    r"|(?:cli|trainer)/(?:train|main)_\w+\.py)"
)
# A setting of verl or a flag of OpenRLHF where a program should be.
_SETTING = re.compile(r"[+~]{0,2}\w+(?:\.[\w-]+)+=|--\w")
_ONLY_MENTION = (
    *("pkill", "pgrep", "kill", "killall", "ps", "lsof", "fuser", "git", "pip", "pip3", "curl", "wget", "rsync", "scp"),
    *("chmod", "cp", "ln", "mkdir", "mv", "rm", "rmdir", "touch", "which", "tar", "sbatch"),
)


@dataclass
class LaunchInput:
    """One translation per launch command. `notes` say where a recorded script may differ from its real run."""

    translations: list[Translation]
    notes: list[str] = field(default_factory=list)
    failures: list[UserError] = field(default_factory=list)  # commands of the script that cannot be translated

    @property
    def run_status(self) -> int:
        """The highest exit status of `burnish run` for its commands."""
        statuses = [translation.run_status for translation in self.translations]
        return max([*statuses, *map(not_translated, self.failures)])


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
    launches = [(command, program) for command in recording for program in find_programs(command.words)]
    notes = [*recording.notes, *_overlooked(recording), *_broken_lines(path, recording)]
    if not launches:
        others = ", ".join(dict.fromkeys(command.words[0] for command in recording)) or "nothing"
        problem = f"{path} starts no program that Burnish can translate (it starts: {others})"
        raise UserError(". ".join([problem, *notes]), hint=_SCRIPT_HINT)
    if len(launches) > MAX_LAUNCHES:
        notes.append(f"the script starts {len(launches)} translatable commands; the first {MAX_LAUNCHES} are shown")
    translations, failures = [], []
    for command, program in launches[:MAX_LAUNCHES]:
        try:
            started = replace(program, env=command.env | program.env)
            translations.append(translate_program(started, command.cwd, assume))
        except UserError as error:
            failures.append(error)
    if not translations:
        raise failures[0]
    notes += dict.fromkeys(f"not translated: {error.text()}" for error in failures)
    return LaunchInput(translations, notes, failures)


def _broken_lines(path: str, recording: Recording) -> list[str]:
    """Notes on lines whose `\\` does not continue the command, so that the rest of its settings is not part of it."""
    if b"\r\n" in Path(path).read_bytes():
        return [f"{path} has Windows line endings, at which bash ends commands. Type: sed -i 's/\\r$//' {path}"]
    notes = [
        f"`{command.words[0]}` is a command of its own: a comment or an empty line ends the command above it, even"
        " after a `\\`. Remove that line"
        for command in recording
        if _SETTING.match(command.words[0])
    ]
    if any(word and not word.strip() for command in recording for word in command.words):
        notes.append("a command has a word of spaces: a `\\` followed by a space does not continue its line")
    return notes


def _overlooked(recording: Recording) -> list[str]:
    """A note for every command that seems to start training, but that no dialect can read."""
    notes = []
    for command in recording:
        match = _TRAINING.search(" ".join(command.words))
        if match and os.path.basename(command.words[0]) not in _ONLY_MENTION and not find_programs(command.words):
            notes.append(f"not translated: `{command.words[0]} ...`, which may start {match.group()}")
    return list(dict.fromkeys(notes))
