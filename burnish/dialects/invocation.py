"""Invocation: the Python program that a launch command starts, without wrappers (env, ray job submit, torchrun)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.launchers import LAUNCHER_MODULES, LAUNCHERS, Launcher
from burnish.errors import UserError
from burnish.untrusted import parse_json

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_SHELLS = ("bash", "sh", "zsh")
# Options of the Python interpreter that take a value.
_PYTHON_VALUE_OPTIONS = ("-W", "-X")
# Tokens that end a simple command of a shell line.
_SEPARATORS = ("&&", "||", ";", "|", "&", "|&")
_REDIRECTION = re.compile(r"&?[<>]+&?")


@dataclass(frozen=True)
class Invocation:
    """`entry` is a module (verl.trainer.main_ppo), a file (cli/train_grpo.py) or `burnish`; `argv` its arguments."""

    entry: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)  # launcher options such as nnodes, nproc_per_node

    @property
    def words(self) -> str:
        return shlex.join([self.entry, *self.argv])


def parse_command(words: Sequence[str]) -> Invocation:
    """Find the Python program that a command starts. UserError if it starts none."""
    env: dict[str, str] = {}
    processes: dict[str, str] = {}
    rest = list(words)
    while rest:
        name = os.path.basename(rest[0])
        if _ASSIGNMENT.fullmatch(rest[0]):
            variable, _, value = rest.pop(0).partition("=")
            env[variable] = value
        elif name in LAUNCHERS:
            rest = _strip_launcher(LAUNCHERS[name], rest[1:], env, processes)
        elif _PYTHON.fullmatch(name):
            rest = _strip_python(rest[1:])
        elif name in _SHELLS and "-c" in rest:
            inner = _parse_shell_line(rest)
            return Invocation(inner.entry, inner.argv, env | inner.env, processes | inner.processes)
        elif name.endswith(".py") or name == "burnish" or _is_module(rest[0]):
            return Invocation(rest[0] if name != "burnish" else name, tuple(rest[1:]), env, processes)
        else:
            break
    raise UserError(
        f"{shlex.join(words)!r} starts no Python program",
        hint="burnish convert -- python3 -m verl.trainer.main_ppo key=value ...",
    )


def _is_module(word: str) -> bool:
    """Whether the word is a dotted module name such as `verl.trainer.main_ppo`."""
    return "." in word and all(part.isidentifier() for part in word.split("."))


def _strip_python(rest: list[str]) -> list[str]:
    """Drop the interpreter's options; name a launcher that runs as a module by its command."""
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in _PYTHON_VALUE_OPTIONS else [] if rest[0] == "-c" else rest[1:]
    if rest[:1] != ["-m"]:
        return rest if rest and rest[0].endswith(".py") else []
    return [LAUNCHER_MODULES.get(rest[1], rest[1]), *rest[2:]] if len(rest) > 1 else []


def _strip_launcher(launcher: Launcher, rest: list[str], env: dict[str, str], processes: dict[str, str]) -> list[str]:
    """Drop a launcher's options, collecting environment variables and process counts from them."""
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
            env.update(_runtime_env_variables(value))
        elif value:
            processes[option.lstrip("-").replace("-", "_")] = value
    return rest[launcher.positional :]


def _runtime_env_variables(text: str) -> dict[str, str]:
    """`env_vars` of a Ray runtime environment."""
    try:
        variables = parse_json(text).get("env_vars") or {}
        return {str(name): str(value) for name, value in variables.items()}
    except (UserError, AttributeError) as error:
        raise UserError("not a JSON object", key="--runtime-env-json", value=text) from error


def _parse_shell_line(words: list[str]) -> Invocation:
    """The first Python program of `bash -c "cd x && python3 ... 2>&1 | tee log"`."""
    line = words[words.index("-c") + 1 :][:1]
    tokens = shlex.shlex(line[0] if line else "", posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token in _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(token)
    for command in commands:
        try:
            return parse_command(_without_redirections(command))
        except UserError:
            continue
    raise UserError(f"{shlex.join(words)!r} starts no Python program", hint="burnish convert -- COMMAND ...")


def _without_redirections(words: list[str]) -> list[str]:
    """Drop everything from the first redirection on. The `2` of `2>&1` is a separate token here."""
    end = next((index for index, word in enumerate(words) if _REDIRECTION.fullmatch(word)), len(words))
    kept = words[:end]
    return kept[:-1] if end < len(words) and kept and kept[-1].isdigit() else kept
