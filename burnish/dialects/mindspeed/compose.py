"""Config composition as in MindSpeed RL: the YAML, model library entries from its `defaults`, and overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from burnish.config.overrides import entry_of, read_overrides
from burnish.dialects.invocation import Invocation
from burnish.dialects.mindspeed.model_library import MODELS
from burnish.dialects.yaml_file import read_yaml
from burnish.errors import UserError, nearest, raise_all

# YAML 1.1 parses 1e-6 as text; MindSpeed RL treats it as a number.
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
# Hydra options that take a value, and those that locate the config.
_VALUE_OPTIONS = (
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--config-path",
    "-cp",
    "--package",
    "-p",
    "--info",
    "-i",
)
_NAME, _DIR, _PATH = ("--config-name", "-cn"), ("--config-dir", "-cd"), ("--config-path", "-cp")
GROUP = "model"


@dataclass
class Composed:
    """`sections` as written, without `removed` keys (~key); `chosen` models of `defaults`, with their `library`
    entries; `missing` have no entry."""

    sections: dict[str, Any]
    library: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    other_defaults: list[Any] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return [name for name in self.chosen if name not in self.library]


def compose(config: Mapping[str, Any], folder: str, overrides: Sequence[str] = ()) -> Composed:
    """Apply overrides, resolve interpolations, and load model entries from `folder`/model/NAME.yaml."""
    tree = _as_tree(config)
    parsed, errors = read_overrides(overrides)
    removed: list[str] = []
    for override in parsed:
        try:
            entry = entry_of(override)
        except UserError as error:
            errors.append(error)
            continue
        if entry.key == GROUP and isinstance(entry.value, str | list):
            tree["defaults"] = [{GROUP: entry.value}]
        elif entry.remove:
            _remove(tree, entry.key)
            removed.append(entry.key)
        else:
            try:
                OmegaConf.update(tree, entry.key, entry.value, merge=False, force_add=True)
            except OmegaConfBaseException as error:
                errors.append(UserError(str(error).splitlines()[0], key=entry.key, value=entry.value))
    raise_all(errors)
    try:
        plain = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"cannot resolve the config: {str(error).splitlines()[0]}") from error
    plain = _parse_exponents(plain)
    chosen, others = _defaults(plain.pop("defaults", None))
    library = {name: entry for name in chosen if (entry := _library_entry(name, folder)) is not None}
    return Composed(plain, library, chosen, others, removed)


def _as_tree(config: Mapping[str, Any]) -> DictConfig:
    """UserError if the file has values that are not plain: sets, or values of types that a YAML tag names."""
    try:
        return OmegaConf.create(dict(config))
    except OmegaConfBaseException as error:
        raise UserError(f"cannot read the config: {str(error).splitlines()[0]}", key=error.full_key or None) from error


def read_settings(path: Path) -> dict[str, Any]:
    """Load a YAML file that must contain a mapping."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: contains no settings")
    return content


def find_config(invocation: Invocation, folder: str) -> tuple[Path, list[str]]:
    """Locate the YAML of a command; returns its path and the command's overrides."""
    options, overrides = _split_options(invocation.argv)
    name = next((options[flag] for flag in _NAME if flag in options), None)
    if name is None:
        raise UserError("missing", key="--config-name", hint=f"{invocation.entry} --config-name NAME")
    script_folder = Path(folder, _script(invocation.entry)).parent
    folders = [Path(folder, options[flag]) for flag in _DIR if flag in options]
    for flag in _PATH:
        if flag in options:  # Hydra resolves it against the script; users often mean the working directory
            folders += [script_folder / options[flag], Path(folder, options[flag])]
    folders += [script_folder / ".." / "configs", Path(folder, "configs")]
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    for config_folder in folders:
        for suffix in (".yaml", ".yml"):
            if (file := config_folder / f"{stem}{suffix}").is_file():
                return file, overrides
    existing = sorted({file.stem for path in folders if path.is_dir() for file in path.glob("*.y*ml")})
    suggestion = nearest(stem, existing)
    raise UserError(
        f"config not found in {', '.join(dict.fromkeys(map(str, folders)))}",
        key="--config-name",
        value=name,
        allowed=existing or None,
        hint=f"--config-name {suggestion}" if suggestion else "--config-dir DIR --config-name NAME",
    )


def _script(entry: str) -> str:
    return entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"


def _split_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split arguments into Hydra's options and overrides."""
    options: dict[str, str] = {}
    overrides: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in _VALUE_OPTIONS:
            if not equals and not rest:
                raise UserError("value missing", key=flag)
            options[flag] = value if equals else rest.pop(0)
        elif word.startswith("-"):
            raise UserError("unknown option", key=word, allowed=list(_VALUE_OPTIONS[:6]))
        else:
            overrides.append(word)
    return options, overrides


def _remove(tree: DictConfig, key: str) -> None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if isinstance(node, DictConfig) and name in node:
        del node[name]


def _parse_exponents(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _parse_exponents(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_parse_exponents(entry) for entry in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _defaults(entries: Any) -> tuple[list[str], list[Any]]:
    """Split a defaults list, or a mapping `defaults: {model: X}`, into model names and other entries."""
    chosen: list[str] = []
    others: list[Any] = []
    entry_list = [entries] if isinstance(entries, dict) else entries if isinstance(entries, list) else []
    for entry in entry_list:
        names = entry.get(GROUP) if isinstance(entry, dict) and list(entry) == [GROUP] else None
        if names is not None:
            chosen += [str(name) for name in (names if isinstance(names, list) else [names])]
        elif entry != "_self_":
            others.append(entry)
    return chosen, others


def _library_entry(name: str, folder: str) -> dict[str, Any] | None:
    """The entry of model/NAME.yaml, else the built-in entry of that name."""
    file = Path(folder) / GROUP / f"{name}.yaml"
    if not file.is_file():
        return MODELS.get(name)
    content = _parse_exponents(read_settings(file))
    entry = content.get(name, content)
    return entry if isinstance(entry, dict) else None
