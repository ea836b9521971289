"""Arguments: Hydra's command line, split into flags and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.dialects.report import INERT, KEPT, REFUSED, Item

_CONFIG_FLAGS = {
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-dir": "config_dir",
    "-cd": "config_dir",
}
_PRINT_CONFIG = ("--cfg", "-c")
# Flags that do not change the run: those with a value, and switches.
_VALUE_FLAGS = (*_PRINT_CONFIG, "--package", "-p", "--info", "-i", "--experimental-rerun")
_SWITCHES = ("--resolve", "--run", "-r")
_SWEEPS = ("--multirun", "-m")
_OTHER_ACTIONS = ("--help", "-h", "--hydra-help", "--version", "--info", "-i", "--shell-completion", "-sc")


@dataclass
class Arguments:
    """`overrides` as written, and the location of the config file."""

    overrides: list[str] = field(default_factory=list)
    config_path: str | None = None
    config_name: str | None = None
    config_dir: str | None = None
    prints_config: bool = False  # --cfg: print the config and exit
    items: list[Item] = field(default_factory=list)  # report on the flags

    @property
    def folder(self) -> str | None:
        return self.config_path or self.config_dir


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Classify every word as override or Hydra flag; unknown flags become refused items."""
    arguments, rest = Arguments(), list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            arguments.overrides.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not equals and (flag in _CONFIG_FLAGS or flag in _VALUE_FLAGS) and rest:
            value = rest.pop(0)
        arguments.items.append(_apply_flag(arguments, flag, value))
    return arguments


def _apply_flag(arguments: Arguments, flag: str, value: str) -> Item:
    if flag in _CONFIG_FLAGS:
        name = _CONFIG_FLAGS[flag]
        setattr(arguments, name, value)
        return Item(flag, value, KEPT, why="folder of the config file" if "name" not in name else "")
    if flag in _PRINT_CONFIG:
        arguments.prints_config = True
        return Item(flag, value or None, INERT, why="`burnish run` prints the config and exits, as Hydra does")
    if flag in _OTHER_ACTIONS:
        return Item(flag, value or None, REFUSED, why="Hydra prints and exits; `burnish explain` lists keys")
    if flag in _VALUE_FLAGS or flag in _SWITCHES:
        return Item(flag, value or None, INERT, why="a flag of Hydra that does not affect the run")
    if flag in _SWEEPS:
        return Item(flag, value or None, REFUSED, why="sweeps are not supported; start one command per value")
    return Item(flag, value or None, REFUSED, why=f"unknown Hydra flag {flag}; write settings as key=value")
