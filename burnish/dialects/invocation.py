"""Invocation: the program behind a launch command, freed of what starts it (env, ray job submit, torchrun)."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.launchers import LAUNCHERS, MODULES, Launcher
from burnish.errors import UserError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_SHELLS = ("bash", "sh", "zsh")
# Python's own options that take the next word.
_PYTHON_VALUES = ("-W", "-X")
# Where one simple command of a shell line ends.
_SEPARATORS = ("&&", "||", ";", "|", "&", "|&")
_REDIRECTION = re.compile(r"&?[<>]+&?")


@dataclass(frozen=True)
class Invocation:
    """`entry` is a module (verl.trainer.main_ppo), a file (cli/train_grpo.py) or `burnish`; `argv` its arguments."""

    entry: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)  # what a launcher said about ranks: nnodes, nproc_per_node

    @property
    def words(self) -> str:
        return shlex.join([self.entry, *self.argv])


def read_command(words: Sequence[str]) -> Invocation:
    """The one program that a command starts. UserError if there is none that Python runs."""
    env: dict[str, str] = {}
    processes: dict[str, str] = {}
    rest = list(words)
    while rest:
        name = os.path.basename(rest[0])
        if _ASSIGNMENT.fullmatch(rest[0]):
            variable, _, value = rest.pop(0).partition("=")
            env[variable] = value
        elif name in LAUNCHERS:
            rest = _unwrap(LAUNCHERS[name], rest[1:], env, processes)
        elif _PYTHON.fullmatch(name):
            rest = _program_of_python(rest[1:])
        elif name in _SHELLS and "-c" in rest:
            inner = _shell_line(rest)
            return Invocation(inner.entry, inner.argv, env | inner.env, processes | inner.processes)
        elif name.endswith(".py") or name == "burnish" or _is_module(rest[0]):
            return Invocation(rest[0] if name != "burnish" else name, tuple(rest[1:]), env, processes)
        else:
            break
    raise UserError(
        f"no Python program is started by {shlex.join(words)!r}",
        hint="burnish convert -- python3 -m verl.trainer.main_ppo key=value ...",
    )


def _is_module(word: str) -> bool:
    """`verl.trainer.main_ppo`: two names or more between dots."""
    return "." in word and all(part.isidentifier() for part in word.split("."))


def _program_of_python(rest: list[str]) -> list[str]:
    """What follows `python`, without Python's own options; a launcher that is run as a module is named as a command."""
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in _PYTHON_VALUES else [] if rest[0] == "-c" else rest[1:]
    if rest[:1] != ["-m"]:
        return rest if rest and rest[0].endswith(".py") else []
    return [MODULES.get(rest[1], rest[1]), *rest[2:]] if len(rest) > 1 else []


def _unwrap(launcher: Launcher, rest: list[str], env: dict[str, str], processes: dict[str, str]) -> list[str]:
    """Drop a launcher and its options; keep what they say about ranks and variables."""
    if launcher.verbs and rest[: len(launcher.verbs)] != list(launcher.verbs):
        return []  # `ray stop`, `conda activate`
    rest = rest[len(launcher.verbs) :]
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in ("-m", "--module") and launcher.starts_python:
            return rest  # `-m verl.trainer.main_ppo`
        if not equals and launcher.takes_value(option) and rest:
            value = rest.pop(0)
        if option == "--runtime-env-json":
            env.update(_variables(value))
        elif value:
            processes[option.lstrip("-").replace("-", "_")] = value
    return rest[launcher.positional :]


def _variables(text: str) -> dict[str, str]:
    """The env_vars of Ray's runtime environment."""
    try:
        variables = json.loads(text).get("env_vars") or {}
        return {str(name): str(value) for name, value in variables.items()}
    except (ValueError, AttributeError) as error:
        raise UserError("is no JSON object", key="--runtime-env-json", value=text) from error


def _shell_line(words: list[str]) -> Invocation:
    """The first program of `bash -c "cd x && python3 ... 2>&1 | tee log"`."""
    line = words[words.index("-c") + 1 :][:1]
    pieces = shlex.shlex(line[0] if line else "", posix=True, punctuation_chars=True)
    pieces.whitespace_split = True
    commands: list[list[str]] = [[]]
    for piece in pieces:
        if piece in _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(piece)
    for command in commands:
        try:
            return read_command(_without_redirections(command))
        except UserError:
            continue
    raise UserError(f"no Python program is started by {shlex.join(words)!r}", hint="burnish convert -- COMMAND ...")


def _without_redirections(words: list[str]) -> list[str]:
    """Up to `> log` or `2>&1`, whose number is a word of its own here."""
    at = next((index for index, word in enumerate(words) if _REDIRECTION.fullmatch(word)), len(words))
    kept = words[:at]
    return kept[:-1] if at < len(words) and kept and kept[-1].isdigit() else kept
