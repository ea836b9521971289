"""Translation: the Burnish settings of another system's command, with a report on every source setting."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from burnish.config import load
from burnish.config.status import status_in, status_of
from burnish.config.tree import to_plain, tree
from burnish.config.values import is_interpolation
from burnish.dialects.hydra_values import format_hydra_value

# Status of a source setting in the report.
KEPT = "kept"  # a Burnish key with the same meaning has the same value
CONVERTED = "converted"  # other units, another value name, or several keys: `why` shows the arithmetic
INERT = "inert"  # understood, but without effect in this run: `why` explains
PENDING = "pending"  # understood and its key exists, but `burnish train` does not support it yet
REFUSED = "refused"  # not possible, or not exactly: `why` says what to type instead
STATUSES = (KEPT, CONVERTED, INERT, PENDING, REFUSED)


@dataclass(frozen=True)
class Item:
    """One source setting and its Burnish equivalent. Source defaults that differ from Burnish's are items too."""

    theirs: str  # as the user wrote it: --advantage_estimator, rl_config.adv_estimator
    value: Any
    status: str
    ours: str | None = None
    ours_value: Any = None
    why: str = ""
    explicit: bool = True  # False: a default of the source system, not written by the user
    original: Item | None = None  # for a pending or inert key: the item before the key's status was applied

    def plain(self) -> dict[str, Any]:
        """The fields that `convert --json` prints."""
        names = ("theirs", "value", "status", "ours", "ours_value", "why")
        return {name: getattr(self, name) for name in names}


@dataclass
class Translation:
    """`settings` maps Burnish keys to values; of two settings of one key, the later wins."""

    dialect: str
    job: str  # train, sft, eval, generate
    items: list[Item] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # variables that the run needs, such as WANDB_API_KEY

    def add(self, item: Item) -> None:
        """Add one item. If its Burnish key is pending or inert, the item gets that status."""
        key = item.ours
        if key is not None and item.status in (KEPT, CONVERTED):
            status = status_of(key, item.ours_value, job=self.job)
            if status.kind in (PENDING, INERT) and not is_default(key, item.ours_value, self.job):
                why = f"{item.why}; {status.why.en}" if item.why else status.why.en
                item = replace(item, status=status.kind, why=why, original=item)
            self.settings[key] = item.ours_value
        self.items.append(item)

    def overrides(self) -> list[str]:
        """The settings as Hydra overrides of `burnish <job>`."""
        return [f"{key}={format_hydra_value(value)}" for key, value in self.settings.items()]

    def config(self) -> dict[str, Any]:
        """The nested config, reduced to what differs from Burnish's defaults."""
        config = to_plain(load(values=self.settings, job=self.job, check=False).cfg)
        defaults = _with_followed_values(deepcopy(_defaults(self.job)), config, self.job, self.settings)
        return difference(config, defaults)

    def count(self, status: str) -> int:
        return sum(item.status == status for item in self.items)

    @property
    def exit_status(self) -> int:
        """3 if a setting is refused, else 0."""
        return 3 if self.count(REFUSED) else 0


def apply_statuses(translation: Translation) -> Any:
    """Update each item's status from the complete config, and return that config.

    Whether a key has an effect can depend on other keys, which are only known once all items are added.
    """
    cfg = load(values=translation.settings, job=translation.job, check=False).cfg
    for index, item in enumerate(translation.items):
        key = item.ours
        if key is None or translation.settings.get(key, translation) != item.ours_value:
            continue
        item = item.original or item
        if item.status not in (KEPT, CONVERTED):
            continue
        status = status_in(cfg, key, item.ours_value, translation.job)
        if status.kind in (PENDING, INERT):
            why = f"{item.why}; {status.why.en}" if item.why else status.why.en
            item = replace(item, status=status.kind, why=why, original=item)
        translation.items[index] = item
        if not item.explicit and item.status == INERT:
            del translation.settings[key]  # keep defaults without effect out of the config
    return cfg


def difference(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The entries of `new` that differ from `old`, nested."""
    changed: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = difference(value, before)
            if inner:
                changed[name] = inner
        elif value != before:
            changed[name] = value
    return changed


@cache
def _defaults(job: str) -> dict[str, Any]:
    return to_plain(load(job=job, check=False).cfg)


def _with_followed_values(
    defaults: dict[str, Any], config: dict[str, Any], job: str, settings: Iterable[str]
) -> dict[str, Any]:
    """Replace defaults that follow another key ("${...}") by their value in `config`, so that they are not listed."""
    set_keys = tuple(settings)
    for leaf in tree(job).leaves.values():
        if is_interpolation(leaf.default) and leaf.key not in set_keys:
            *sections, name = leaf.key.split(".")
            target, source = defaults, config
            for section in sections:
                target, source = target[section], source[section]
            target[name] = source[name]
    return defaults


def is_default(key: str, value: Any, job: str) -> bool:
    """Whether `value` is Burnish's default for `key`."""
    match = tree(job).find(key)
    return match is not None and not match[1] and match[0].default == value


def source_names(items: Iterable[Item]) -> dict[str, str]:
    """Burnish key -> the name that the user wrote, for error messages in the user's own terms."""
    return {item.ours: item.theirs for item in items if item.ours is not None and item.explicit}
