"""load(): parse files and overrides into a checked config, or raise all errors at once."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException

from burnish.config.async_rules import apply_async
from burnish.config.credit_rules import apply_rounding
from burnish.config.derive import derive
from burnish.config.overrides import (
    COMMAND_LINE,
    Entry,
    Overrides,
    entry_of,
    is_group,
    locate_file,
    read_file,
    read_overrides,
    split_overrides,
)
from burnish.config.root import TrainConfig
from burnish.config.rules import check_rules
from burnish.config.settings import Setting, Settings
from burnish.config.status import check_supported, inert_notices
from burnish.config.tree import Tree, to_plain, tree
from burnish.config.values import convert, is_interpolation
from burnish.errors import UserError, raise_all
from burnish.redact import redact, remember_interpolation, remember_secrets


@dataclass
class Loaded:
    """A config, the settings of the user, and notices for them."""

    cfg: Any  # TrainConfig, SftConfig, EvalConfig or GenerateConfig
    job: str
    settings: dict[str, Setting] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def yaml(self) -> str:
        """The resolved config as YAML, with the keys that users write and without secrets."""
        return yaml.dump(
            redact(to_plain(self.cfg)),
            Dumper=get_omega_conf_dumper(),  # quotes texts that YAML 1.1 reads as numbers or booleans
            default_flow_style=False,
            allow_unicode=True,
            sort_keys=False,
        )


def load(
    overrides: Overrides = (),
    *,
    values: Mapping[str, Any] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
    job: str = "train",
    check: bool = True,
    given: Collection[str] = (),
) -> Loaded:
    """Build the config of a job from a file, overrides and `values` (key -> value).

    Overrides are a list of strings, a mapping (also nested), a list of both, or one string.

    All errors are raised together. With `check`, broken rules, pending and refused keys are errors too, and notices
    list keys without effect. Required keys in `given` may be unset: the caller supplies them in another way (for
    example rows instead of files).
    """
    config_path, config_name = locate_file(config_path, config_name)
    words = split_overrides(overrides)
    parsed, errors = read_overrides([word for word in words if isinstance(word, str)])
    groups = [override for override in parsed if is_group(override, config_path)]
    settings = Settings(tree(job))
    if config_name is not None:
        try:
            settings.add_all(read_file(config_path, config_name, groups))
        except UserError as error:
            errors.append(error)
    settings.add_all(_entries(words, [] if config_name is None else groups, parsed, errors))
    settings.add_all(Entry(key, value, COMMAND_LINE) for key, value in (values or {}).items())
    remember_secrets({key: setting.value for key, setting in settings.values.items()})
    errors += settings.errors
    cfg, broken = build(settings)
    errors += broken
    notices = settings.notices
    if isinstance(cfg, TrainConfig):  # before the rules, which check these values too
        notices = [*notices, *apply_async(cfg, settings.values), *apply_rounding(cfg, settings.values)]
    if check:
        errors += check_supported(cfg, settings.values, job)
        rule_errors, rule_notices = check_rules(cfg, job, given)
        errors += rule_errors
        notices = [*notices, *rule_notices, *inert_notices(cfg, settings.values, job)]
    raise_all(errors)
    if isinstance(cfg, TrainConfig):  # after the rules, whose errors name keys as the user wrote them
        notices = [*notices, *derive(cfg)]
    return Loaded(cfg, job, settings.values, notices)


def _entries(
    words: list[str | Entry], groups: list[Override], parsed: list[Override], errors: list[UserError]
) -> list[Entry]:
    """The entries in the order of the words; those that select files (`groups`) are left out."""
    by_text = {override.input_line: override for override in parsed}
    entries = []
    for word in words:
        if isinstance(word, Entry):
            entries.append(word)
        elif word in by_text and by_text[word] not in groups:
            try:
                entries.append(entry_of(by_text[word]))
            except UserError as error:
                errors.append(error)
    return entries


def build(settings: Settings) -> tuple[Any, list[UserError]]:
    """The config with all settings applied and interpolations resolved. Settings that do not resolve are dropped."""
    config: DictConfig = pickle.loads(_structured(settings.tree.root))
    errors: list[UserError] = []
    for key, setting in list(settings.values.items()):
        try:
            _set(config, settings.tree, key, setting.value)
        except OmegaConfBaseException as error:  # text that starts an interpolation and does not end it
            errors.append(UserError(str(error).splitlines()[0], key=key, value=settings.values.pop(key).value))
    for key in [key for key, setting in settings.values.items() if _has_interpolation(setting.value)]:
        try:
            typed, settings.values[key].value = settings.values[key].value, _resolved(config, settings.tree, key)
            remember_interpolation(key, typed, settings.values[key].value)
            _set(config, settings.tree, key, settings.values[key].value)
        except (OmegaConfBaseException, UserError) as error:
            value = settings.values.pop(key).value
            leaf, _ = settings.tree.get(key)
            OmegaConf.update(config, leaf.path, leaf.default, merge=False)
            reason = str(error).splitlines()[0]
            problem = UserError(f"cannot resolve the interpolation: {reason}", key=key, value=value)
            errors.append(error if isinstance(error, UserError) else problem)
    return OmegaConf.to_object(config), errors


@cache
def _structured(root: type) -> bytes:
    """The config with its defaults, pickled: unpickling is much faster than deepcopy, and that than building it."""
    return pickle.dumps(OmegaConf.structured(root))


def _set(config: DictConfig, keys: Tree, key: str, value: Any) -> None:
    OmegaConf.update(config, _path(keys, key), value, merge=False, force_add=True)


def _path(keys: Tree, key: str) -> str:
    leaf, rest = keys.get(key)
    return f"{leaf.path}.{rest}" if rest else leaf.path


def _resolved(config: DictConfig, keys: Tree, key: str) -> Any:
    """The value of a user's interpolation, checked like a literal value."""
    value = OmegaConf.select(config, _path(keys, key), throw_on_missing=True)
    if OmegaConf.is_config(value):
        value = OmegaConf.to_object(value)
    leaf, rest = keys.get(key)
    return value if rest else convert(leaf, value)


def _has_interpolation(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_interpolation, value))
    if isinstance(value, dict):
        return any(map(_has_interpolation, value.values()))
    return is_interpolation(value)
