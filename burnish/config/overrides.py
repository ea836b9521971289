"""Parse overrides and YAML files with Hydra into a flat list of entries."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from burnish.config.verl_files import VERL_FILES
from burnish.errors import UserError, nearest

COMMAND_LINE = "the command line"
_INLINE = "inline"  # name under which a parsed YAML joins the files it is composed with


@dataclass(frozen=True)
class Entry:
    """A key and its value, or the removal of a key."""

    key: str
    value: Any
    origin: str
    text: str | None = None  # the value as typed, on the command line
    remove: bool = False


Overrides = str | Mapping[str, Any] | Sequence["str | Mapping[str, Any]"]
_FORMS = 'a list ["a.b=1", "c=x"], a mapping {"a.b": 1, "c": {"d": "x"}}, or a string "a.b=1 c=x"'


def split_overrides(overrides: Overrides) -> list[str | Entry]:
    """Python's forms of overrides as overrides of the command line and entries, in order.

    A string is split as a shell would. Mappings may be nested, and keys in them dotted; values are Python's.
    """
    if isinstance(overrides, str):
        try:
            return [*shlex.split(overrides.replace("\\\n", " "), comments=True)]
        except ValueError as error:
            raise UserError(f"cannot split the overrides: {error}", key="overrides", value=overrides) from error
    if isinstance(overrides, Mapping | DictConfig):
        return [*mapping_entries(overrides)]
    if not isinstance(overrides, Sequence | ListConfig):
        raise UserError("not a form of overrides", key="overrides", value=overrides, allowed=_FORMS)
    words: list[str | Entry] = []
    for item in overrides:
        if not isinstance(item, str | Mapping | DictConfig):
            raise UserError("an override must be a string or a mapping", key="overrides", value=item, allowed=_FORMS)
        words += [item] if isinstance(item, str) else mapping_entries(item)
    return words


def mapping_entries(content: Any) -> list[Entry]:
    """The entries of a (nested) mapping of Python; `+key` and `~key` mean what they do on the command line."""
    entries = []
    for entry in flat(_plain(content), COMMAND_LINE):
        key = entry.key.lstrip("+~")
        entries.append(Entry(key, entry.value, entry.origin, remove=entry.key.startswith("~")))
    return entries


def _plain(value: Any) -> Any:
    """Containers as dicts and lists, paths as text, scalars of numpy and torch as numbers."""
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=False)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UserError("keys must be strings", key="overrides", value=key, allowed=_FORMS)
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Enum):
        return value.value
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def read_overrides(overrides: Sequence[str]) -> tuple[list[Override], list[UserError]]:
    """Parse all overrides; collect all syntax errors."""
    parser = OverridesParser.create()
    parsed, errors = [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            reason = str(error).splitlines()[0]
            key, _, value = text.partition("=")
            hint = f"{key}=\"'{value}'\"" if value else "a.b.c=value"
            errors.append(UserError(f"cannot parse the override {text!r}: {reason}", hint=hint))
    return parsed, errors


def entry_of(override: Override) -> Entry:
    """An override as an entry; comma-separated values become a list."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        value = [getattr(choice, "text", choice) for choice in value.list]
    elif override.is_sweep_override():
        raise UserError(
            "sweeps over values are not supported", key=override.key_or_group, value=str(override.input_line)
        )
    text = (override.input_line or "").partition("=")[2]
    return Entry(override.key_or_group, value, COMMAND_LINE, text, remove=override.type == OverrideType.DEL)


def is_added(override: Override) -> bool:
    """Whether the key is added with + or ++: it need not exist in the config that it is added to."""
    return override.type in (OverrideType.ADD, OverrideType.FORCE_ADD)


def is_group(override: Override, config_path: str | None) -> bool:
    """Whether this override selects a file of a config group, `group=name`."""
    name = override.key_or_group
    if override.package is not None or "/" in name:
        return True
    return config_path is not None and "." not in name and (Path(config_path) / name).is_dir()


def locate_file(config_path: str | None, config_name: str | None) -> tuple[str | None, str | None]:
    """Folder and name of the config file. The name may be a path, and the path may name the file itself."""
    if config_name is None and config_path is not None:
        if not Path(config_path).expanduser().is_file():
            raise UserError(
                "no config file is named", key="--config-path", value=config_path, hint="--config-name NAME"
            )
        config_path, config_name = None, config_path
    if config_name is None or not Path(config_name).name:
        return config_path, config_name
    # Hydra would put the keys of a file in a subfolder below that folder's name.
    file = Path(config_name).expanduser()
    folder = Path(config_path or ".").expanduser() / file.parent
    return (config_path if file.parent == Path(".") else str(folder)), file.name


def read_file(config_path: str | None, config_name: str, groups: Sequence[Override]) -> list[Entry]:
    """Compose a YAML file with its `defaults:` list; returns its entries."""
    folder = Path(config_path or ".").expanduser().absolute()
    name = config_name.removesuffix(".yaml").removesuffix(".yml")
    exists = any((folder / f"{name}{end}").is_file() for end in (".yaml", ".yml"))
    if not exists and name not in VERL_FILES:
        raise _no_such_file(folder, name)
    if not exists:
        return flat(VERL_FILES[name], name)
    return _composed(folder, name, groups)


def read_mapping(content: Mapping[str, Any], folder: str, origin: str) -> list[Entry]:
    """The entries of a parsed YAML; files of its `defaults:` list are looked up in `folder`."""
    if not content.get("defaults"):
        return flat(content, origin)
    try:
        ConfigStore.instance().store(name=_INLINE, node=dict(content))
    except OmegaConfBaseException as error:
        raise UserError(f"cannot read {origin}: {str(error).splitlines()[0]}") from error
    return _composed(Path(folder).absolute(), _INLINE, ())


def _composed(folder: Path, name: str, groups: Sequence[Override]) -> list[Entry]:
    store = ConfigStore.instance()
    for verl_name, content in VERL_FILES.items():
        store.store(name=verl_name, node=content)
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), job_name="burnish", version_base=None):
            warnings.simplefilter("ignore")  # search paths that do not exist here
            composed = compose(name, overrides=[override.input_line or "" for override in groups])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:  # ValueError: of `defaults:`
        raise UserError(f"cannot compose {folder / name}: {error}", key="--config-name", value=name) from error
    content = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    return flat(content, f"{name}.yaml")


def _no_such_file(folder: Path, name: str) -> UserError:
    names = [*(sorted(path.stem for path in folder.glob("[!.]*.y*ml")) if folder.is_dir() else []), *VERL_FILES]
    suggestion = nearest(name, names)
    return UserError(
        f"no such config file in {os.path.relpath(folder)}",
        key="--config-name",
        value=name,
        allowed=names,
        hint=f"--config-name {suggestion}" if suggestion else "--config-path DIR --config-name NAME",
    )


def flat(node: Mapping[str, Any], origin: str, prefix: str = "") -> list[Entry]:
    """The entries of a nested mapping. `hydra`, `defaults` and `_target_` are Hydra's own and skipped."""
    entries: list[Entry] = []
    for key, value in node.items():
        if key == "_target_" or (not prefix and key in ("hydra", "defaults")):
            continue
        full = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            entries += flat(value, origin, f"{full}.")
        else:
            entries.append(Entry(full, value, origin))
    return entries
