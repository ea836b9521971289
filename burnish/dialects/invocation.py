"""Invocation: the Python program that a launch command starts, without wrappers (env, ray job submit, torchrun)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from burnish.dialects.launchers import LAUNCHER_MODULES, LAUNCHERS, Launcher
from burnish.errors import UserError
from burnish.untrusted import parse_json

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_SHELLS = ("bash", "sh", "zsh")
_SHELL_LINE = re.compile(r"-[a-z]*c[a-z]*")  # -c, -lc, -exc
_SHELL_KEYWORDS = ("then", "do", "else", "{", "!", "if", "elif", "while", "until")
# Options of the Python interpreter that take a value.
_PYTHON_VALUE_OPTIONS = ("-W", "-X")
# Tokens that end a simple command of a shell line.
_SEPARATOR = re.compile(r"[();|&\n]+")
_PUNCTUATION = "();<>|&\n"
_REDIRECTION = re.compile(r"&?[<>]+&?")
_MAX_DEPTH = 8  # of shell lines in shell lines


@dataclass(frozen=True)
class Invocation:
    """`entry` is a module (verl.trainer.main_ppo), a file (cli/train_grpo.py) or `burnish`; `argv` its arguments."""

    entry: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)  # launcher options such as nnodes, nproc_per_node
    place: str = ""  # if not here: in a container (docker), on another machine (ssh)

    @property
    def words(self) -> str:
        return shlex.join([self.entry, *self.argv])


def parse_commands(words: Sequence[str]) -> list[Invocation]:
    """Find the Python programs that a command starts; a shell line (bash -c) may start several."""
    invocations = list(_find_programs(list(words), Invocation("", ()), 0))
    if not invocations:
        raise UserError(
            f"{shlex.join(words)!r} starts no Python program",
            hint="burnish convert -- python3 -m verl.trainer.main_ppo key=value ...",
        )
    return invocations


def _find_programs(rest: list[str], context: Invocation, depth: int) -> Iterator[Invocation]:
    """`context` holds the environment and the options of the launchers so far."""
    while rest:
        name = os.path.basename(rest[0])
        if _ASSIGNMENT.fullmatch(rest[0]):
            variable, _, value = rest.pop(0).partition("=")
            context = replace(context, env=context.env | {variable: value})
        elif name in LAUNCHERS:
            launcher = LAUNCHERS[name]
            rest, context = _strip_launcher(name, rest[1:], context)
            if launcher.starts_line and rest:
                rest = ["bash", "-c", " ".join(rest)]
        elif _PYTHON.fullmatch(name):
            rest = _strip_python(rest[1:])
        elif name in _SHELLS:
            yield from _find_in_shell_line(_shell_line(rest), context, depth)
            return
        elif name.endswith(".py") or name == "burnish" or _is_module(rest[0]):
            yield replace(context, entry=rest[0] if name != "burnish" else name, argv=tuple(rest[1:]))
            return
        elif len(rest) == 1 and " " in rest[0].strip():
            yield from _find_in_shell_line(rest[0], context, depth)  # a launcher's command as one word
            return
        else:
            return


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


def _strip_launcher(name: str, rest: list[str], context: Invocation) -> tuple[list[str], Invocation]:
    """Drop a launcher's options, collecting environment variables and process counts from them."""
    launcher = LAUNCHERS[name]
    if not launcher.has_verbs(rest):
        return [], context  # `ray stop`, `conda activate`
    rest = rest[len(launcher.verbs) :]
    env, processes = dict(context.env), dict(context.processes)
    place = f"{launcher.place} ({name})" if launcher.place else context.place
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in ("-m", "--module") and launcher.starts_python:
            return rest, replace(context, env=env, processes=_per_node(processes))  # `-m verl.trainer.main_ppo`
        if not equals:
            taken = [rest.pop(0) for _ in range(min(launcher.num_values(option), len(rest)))]
            value = taken[0] if taken else ""
        if option == "--runtime-env-json":
            env.update(_runtime_env_variables(value))
        elif option in launcher.variables:
            variable, has_value, text = value.partition("=")
            env.update({variable: text} if has_value else {})
        elif value and launcher.counts_processes:
            processes[option.lstrip("-").replace("-", "_")] = value
    context = replace(context, env=env, processes=_per_node(processes), place=place)
    return _after_positional(launcher, rest), context


def _per_node(processes: dict[str, str]) -> dict[str, str]:
    """The options with nproc_per_node and nnodes, where accelerate has totals and deepspeed lists devices."""
    total, nodes, devices = (processes.get(name, "") for name in ("num_processes", "num_machines", "include"))
    if total.isdigit():
        num_nodes = int(nodes) if nodes.isdigit() and int(nodes) else 1
        return {"nproc_per_node": str(int(total) // num_nodes), "nnodes": str(num_nodes)} | processes
    if ":" in devices and "@" not in devices:  # localhost:0,1
        return {"nproc_per_node": str(devices.count(",") + 1)} | processes
    return processes


def _after_positional(launcher: Launcher, rest: list[str]) -> list[str]:
    """The started command: `docker run IMAGE COMMAND`, `kubectl exec POD -- COMMAND`."""
    rest = rest[launcher.positional :]
    return rest[1:] if launcher.positional and rest[:1] == ["--"] else rest


def _runtime_env_variables(text: str) -> dict[str, str]:
    """`env_vars` of a Ray runtime environment."""
    try:
        variables = parse_json(text).get("env_vars") or {}
        return {str(name): str(value) for name, value in variables.items()}
    except (UserError, AttributeError) as error:
        raise UserError("not a JSON object", key="--runtime-env-json", value=text) from error


def _shell_line(words: list[str]) -> str:
    """The line of `bash -c LINE`; empty if there is none."""
    index = next((index for index, word in enumerate(words[:-1]) if _SHELL_LINE.fullmatch(word)), None)
    return "" if index is None else words[index + 1]


def _find_in_shell_line(line: str, context: Invocation, depth: int) -> Iterator[Invocation]:
    """The Python programs of `cd x && export A=1 && python3 ... 2>&1 | tee log`."""
    if depth >= _MAX_DEPTH:
        return
    for command in _split_line(line):
        command = _without_redirections(command)
        while command and command[0] in _SHELL_KEYWORDS:
            command = command[1:]
        if command[:1] == ["export"]:
            exported = (word.partition("=") for word in command[1:] if _ASSIGNMENT.fullmatch(word))
            context = replace(context, env=context.env | {name: value for name, _, value in exported})
        else:
            yield from _find_programs(command, context, depth + 1)


def _split_line(line: str) -> list[list[str]]:
    """The simple commands of a shell line. Variables are not expanded. UserError if a quote is not closed."""
    tokens = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=_PUNCTUATION)
    tokens.whitespace, tokens.whitespace_split, tokens.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for token in tokens:
            if _SEPARATOR.fullmatch(token):
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError as error:
        raise UserError(f"not a shell line: {error}", value=line[:200]) from error
    return commands


def _without_redirections(words: list[str]) -> list[str]:
    """Drop everything from the first redirection on. The `2` of `2>&1` is a separate token here."""
    end = next((index for index, word in enumerate(words) if _REDIRECTION.fullmatch(word)), len(words))
    kept = words[:end]
    return kept[:-1] if end < len(words) and kept and kept[-1].isdigit() else kept
