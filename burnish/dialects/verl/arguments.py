"""Arguments: Hydra's command line, its flags told from its overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.report import INERT, KEPT, REFUSED, Item

_NAMES = {
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-dir": "config_dir",
    "-cd": "config_dir",
}
# Flags with a value that ask for something beside the run.
_VALUED = ("--cfg", "-c", "--package", "-p", "--info", "-i", "--experimental-rerun")
_BESIDE = ("--resolve", "--run", "-r", "--help", "-h", "--hydra-help", "--version")
_SWEEPS = ("--multirun", "-m", "--shell-completion", "-sc")


@dataclass
class Arguments:
    """`overrides` as written, and where the config file is."""

    overrides: list[str] = field(default_factory=list)
    config_path: str | None = None
    config_name: str | None = None
    config_dir: str | None = None
    items: list[Item] = field(default_factory=list)  # what became of the flags

    @property
    def folder(self) -> str | None:
        return self.config_path or self.config_dir


def read_arguments(argv: Sequence[str]) -> Arguments:
    """Every word is an override, a flag of Hydra, or refused."""
    arguments, rest = Arguments(), list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            arguments.overrides.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not equals and (flag in _NAMES or flag in _VALUED) and rest:
            value = rest.pop(0)
        arguments.items.append(_flag(arguments, flag, value))
    return arguments


def _flag(arguments: Arguments, flag: str, value: str) -> Item:
    if flag in _NAMES:
        setattr(arguments, _NAMES[flag], value)
        return Item(flag, value, KEPT, why="where the config file is looked up" if "name" not in _NAMES[flag] else "")
    if flag in _VALUED or flag in _BESIDE:
        return Item(flag, value or None, INERT, why="Hydra's own flag: it says nothing about the run")
    if flag in _SWEEPS:
        return Item(flag, value or None, REFUSED, why="one run at a time; write a command per value of the sweep")
    return Item(flag, value or None, REFUSED, why=f"{flag} is no flag of Hydra; settings are written key=value")
