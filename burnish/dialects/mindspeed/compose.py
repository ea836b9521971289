"""A config as MindSpeed RL sees it: the YAML, the model library behind its `defaults`, and overrides on the command."""

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
from burnish.dialects.mindspeed.models import SHAPES
from burnish.dialects.yaml_file import read_yaml
from burnish.errors import UserError, nearest, raise_all

# YAML 1.1 reads 1e-6 as text; there it is a number.
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
# Options of Hydra's command line that take a value, and those of them that say where configs are.
_VALUED = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp", "--package", "-p", "--info", "-i")
_NAME, _DIR, _PATH = ("--config-name", "-cn"), ("--config-dir", "-cd"), ("--config-path", "-cp")
GROUP = "model"


@dataclass
class Composed:
    """`sections` as written; `library` the model entries that `defaults` pulled in; `missing` those it cannot have."""

    sections: dict[str, Any]
    library: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    other_defaults: list[Any] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return [name for name in self.chosen if name not in self.library]


def compose(config: Mapping[str, Any], folder: str, overrides: Sequence[str] = ()) -> Composed:
    """Apply the overrides, resolve interpolations, read the model entries. `folder` is where `model/NAME.yaml` lies."""
    tree: DictConfig = OmegaConf.create(dict(config))
    parsed, errors = read_overrides(overrides)
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
        else:
            OmegaConf.update(tree, entry.key, entry.value, merge=False, force_add=True)
    raise_all(errors)
    try:
        plain = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"the config cannot be resolved: {str(error).splitlines()[0]}") from error
    plain = _with_numbers(plain)
    chosen, others = _defaults(plain.pop("defaults", None))
    library = {name: shape for name in chosen if (shape := _library_entry(name, folder)) is not None}
    return Composed(plain, library, chosen, others)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    read = read_yaml(path)
    if not isinstance(read, dict):
        raise UserError(f"{path} holds no settings")
    return read


def find_config(invocation: Invocation, folder: str) -> tuple[Path, list[str]]:
    """The YAML that a command names, and the overrides beside it."""
    options, overrides = _options(invocation.argv)
    name = next((options[flag] for flag in _NAME if flag in options), None)
    if name is None:
        raise UserError("no config is named", key="--config-name", hint=f"{invocation.entry} --config-name NAME")
    script = Path(folder, _script(invocation.entry)).parent
    places = [Path(folder, options[flag]) for flag in _DIR if flag in options]
    for flag in _PATH:
        if flag in options:  # Hydra counts it from the script; people count it from where they stand
            places += [script / options[flag], Path(folder, options[flag])]
    places += [script / ".." / "configs", Path(folder, "configs")]
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    for place in places:
        for ending in (".yaml", ".yml"):
            if (file := place / f"{stem}{ending}").is_file():
                return file, overrides
    found = sorted({file.stem for place in places if place.is_dir() for file in place.glob("*.y*ml")})
    meant = nearest(stem, found)
    raise UserError(
        f"no such config in {', '.join(dict.fromkeys(str(place) for place in places))}",
        key="--config-name",
        value=name,
        allowed=found or None,
        hint=f"--config-name {meant}" if meant else "--config-dir DIR --config-name NAME",
    )


def _script(entry: str) -> str:
    return entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"


def _options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Hydra's own options, and the overrides."""
    options: dict[str, str] = {}
    overrides: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in _VALUED:
            if not equals and not rest:
                raise UserError("has no value", key=flag)
            options[flag] = value if equals else rest.pop(0)
        elif word.startswith("-"):
            raise UserError("MindSpeed RL's scripts have no such option", key=word, allowed=list(_VALUED[:6]))
        else:
            overrides.append(word)
    return options, overrides


def _remove(tree: DictConfig, key: str) -> None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if isinstance(node, DictConfig) and name in node:
        del node[name]


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_numbers(entry) for entry in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _defaults(entries: Any) -> tuple[list[str], list[Any]]:
    """The models that a defaults list chooses, and what else it has. A plain mapping `defaults: {model: X}` is one."""
    chosen: list[str] = []
    others: list[Any] = []
    listed = [entries] if isinstance(entries, dict) else entries if isinstance(entries, list) else []
    for entry in listed:
        names = entry.get(GROUP) if isinstance(entry, dict) and list(entry) == [GROUP] else None
        if names is not None:
            chosen += [str(name) for name in (names if isinstance(names, list) else [names])]
        elif entry != "_self_":
            others.append(entry)
    return chosen, others


def _library_entry(name: str, folder: str) -> dict[str, Any] | None:
    """The user's own model/NAME.yaml, else the shape known by that name."""
    file = Path(folder) / GROUP / f"{name}.yaml"
    if not file.is_file():
        return SHAPES.get(name)
    read = _with_numbers(read_settings(file))
    entry = read.get(name, read)
    return entry if isinstance(entry, dict) else None
