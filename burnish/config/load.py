"""load: from what was written to a checked config, or to all its errors at once."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from burnish.config.async_rules import follow
from burnish.config.derive import derive
from burnish.config.overrides import COMMAND_LINE, Entry, entry_of, is_group, read_file, read_overrides
from burnish.config.root import TrainConfig
from burnish.config.rules import check_rules
from burnish.config.settings import Setting, Settings
from burnish.config.status import check_pending, inert_notices
from burnish.config.tree import Tree, to_plain, tree
from burnish.config.values import convert, is_interpolation
from burnish.errors import UserError, raise_all


@dataclass
class Loaded:
    """A config, what the user set in it, and what they should know."""

    cfg: Any  # TrainConfig, SftConfig, EvalConfig or GenerateConfig
    job: str
    settings: dict[str, Setting] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def yaml(self) -> str:
        """The whole resolved tree as YAML, under the keys that users write."""
        return OmegaConf.to_yaml(OmegaConf.create(to_plain(self.cfg), flags={"allow_objects": True}))


def load(
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
    job: str = "train",
    check: bool = True,
    given: Collection[str] = (),
) -> Loaded:
    """Read a file, overrides, and `values` (by key, as they are) into the job's config.

    Every error is raised together. With `check`, rules across keys and pending keys are errors too, and the notices
    say which keys have no effect here. Keys in `given` are supplied in another way (rows instead of files), so that
    leaving them out is no error.
    """
    parsed, errors = read_overrides(overrides)
    groups = [override for override in parsed if is_group(override, config_path)]
    settings = Settings(tree(job))
    if config_name is not None:
        try:
            settings.add_all(read_file(config_path, config_name, groups))
        except UserError as error:
            errors.append(error)
    settings.add_all(_entries([one for one in parsed if config_name is None or one not in groups], errors))
    settings.add_all(Entry(key, value, COMMAND_LINE) for key, value in (values or {}).items())
    errors += settings.errors
    cfg, broken = build(settings)
    errors += broken
    notices = settings.notices
    if isinstance(cfg, TrainConfig):  # before the rules, which hold for these values too
        notices = [*notices, *follow(cfg, settings.values)]
    if check:
        errors += check_pending(cfg, settings.values, job)
        rule_errors, rule_notices = check_rules(cfg, job, given)
        errors += rule_errors
        notices = [*notices, *rule_notices, *inert_notices(cfg, settings.values, job)]
    raise_all(errors)
    if isinstance(cfg, TrainConfig):  # after the rules, which speak of what was written
        notices = [*notices, *derive(cfg)]
    return Loaded(cfg, job, settings.values, notices)


def _entries(parsed: list, errors: list[UserError]) -> list[Entry]:
    entries = []
    for override in parsed:
        try:
            entries.append(entry_of(override))
        except UserError as error:
            errors.append(error)
    return entries


def build(settings: Settings) -> tuple[Any, list[UserError]]:
    """The config with all settings in place, its interpolations resolved. A setting that cannot be is left out."""
    config: DictConfig = pickle.loads(_structured(settings.tree.root))
    for key, setting in settings.values.items():
        _put(config, settings.tree, key, setting.value)
    errors: list[UserError] = []
    for key in [key for key, setting in settings.values.items() if _has_interpolation(setting.value)]:
        try:
            settings.values[key].value = _resolved(config, settings.tree, key)
            _put(config, settings.tree, key, settings.values[key].value)
        except (OmegaConfBaseException, UserError) as error:
            value = settings.values.pop(key).value
            leaf, _ = settings.tree.find(key)
            OmegaConf.update(config, leaf.path, leaf.default, merge=False)
            reason = str(error).splitlines()[0]
            problem = UserError(f"cannot be resolved: {reason}", key=key, value=value)
            errors.append(error if isinstance(error, UserError) else problem)
    return OmegaConf.to_object(config), errors


@cache
def _structured(root: type) -> bytes:
    """The tree with its defaults, pickled: a copy from there is far faster than deepcopy, and that than building it."""
    return pickle.dumps(OmegaConf.structured(root))


def _put(config: DictConfig, known: Tree, key: str, value: Any) -> None:
    OmegaConf.update(config, _path(known, key), value, merge=False, force_add=True)


def _path(known: Tree, key: str) -> str:
    leaf, rest = known.find(key)
    return f"{leaf.path}.{rest}" if rest else leaf.path


def _resolved(config: DictConfig, known: Tree, key: str) -> Any:
    """What an interpolation of the user stands for, checked like a value typed there."""
    value = OmegaConf.select(config, _path(known, key), throw_on_missing=True)
    if OmegaConf.is_config(value):
        value = OmegaConf.to_object(value)
    leaf, rest = known.find(key)
    return value if rest else convert(leaf, value)


def _has_interpolation(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_interpolation, value))
    if isinstance(value, dict):
        return any(map(_has_interpolation, value.values()))
    return is_interpolation(value)
