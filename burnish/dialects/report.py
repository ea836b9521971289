"""Translation: what somebody else's command means in our keys, setting by setting. Nothing is dropped."""

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
from burnish.dialects.typed import typed

# What became of a setting.
KEPT = "kept"  # our key of the same meaning has the same value
CONVERTED = "converted"  # other units, another name of the value, several keys: `why` has the arithmetic
INERT = "inert"  # understood, and can have no effect here: `why` says so
PENDING = "pending"  # understood, its key exists, and `burnish train` refuses it today
REFUSED = "refused"  # cannot be done, or not exactly: `why` says what to do
STATUSES = (KEPT, CONVERTED, INERT, PENDING, REFUSED)


@dataclass(frozen=True)
class Item:
    """One setting of theirs and what it became. A default of theirs that differs from ours is an item too."""

    theirs: str  # as the user wrote it: --advantage_estimator, rl_config.adv_estimator
    value: Any
    status: str
    ours: str | None = None
    ours_value: Any = None
    why: str = ""
    given: bool = True  # False: their default, written out
    acting: Item | None = None  # of a pending or inert one: the same, if its key acted

    def plain(self) -> dict[str, Any]:
        """As `convert --json` prints it."""
        names = ("theirs", "value", "status", "ours", "ours_value", "why")
        return {name: getattr(self, name) for name in names}


@dataclass
class Translation:
    """`settings` are our keys with their values, in the order in which they were settled; a later one wins."""

    dialect: str
    job: str  # train, sft, eval, generate
    items: list[Item] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # variables that the run needs, such as WANDB_API_KEY

    def put(self, item: Item) -> None:
        """Take one setting up. Where its key of ours is pending or inert, so is the setting."""
        if item.ours is not None and item.status in (KEPT, CONVERTED):
            status = status_of(item.ours, item.ours_value, job=self.job)
            if status.kind in (PENDING, INERT) and not is_default(item.ours, item.ours_value, self.job):
                said = f"{item.why}; {status.why.en}" if item.why else status.why.en
                item = replace(item, status=status.kind, why=said, acting=item)
            self.settings[item.ours] = item.ours_value
        self.items.append(item)

    def overrides(self) -> list[str]:
        """The same as Hydra overrides of `burnish <job>`."""
        return [f"{key}={typed(value)}" for key, value in self.settings.items()]

    def config(self) -> dict[str, Any]:
        """The canonical config, nested: only what differs from our defaults."""
        theirs = to_plain(load(values=self.settings, job=self.job, check=False).cfg)
        return difference(theirs, _followed(deepcopy(_defaults(self.job)), theirs, self.job, self.settings))

    def count(self, status: str) -> int:
        return sum(item.status == status for item in self.items)

    @property
    def exit_status(self) -> int:
        """0 when nothing was refused, 3 when something was."""
        return 3 if self.count(REFUSED) else 0


def weigh(translation: Translation) -> Any:
    """Look at each setting within the whole run: a default waits for nothing, and what cannot matter here is inert.
    The run's config comes back."""
    cfg = load(values=translation.settings, job=translation.job, check=False).cfg
    for index, item in enumerate(translation.items):
        if item.ours is None or translation.settings.get(item.ours, translation) != item.ours_value:
            continue
        item = item.acting or item
        if item.status not in (KEPT, CONVERTED):
            continue
        status = status_in(cfg, item.ours, item.ours_value, translation.job)
        if status.kind in (PENDING, INERT):
            said = f"{item.why}; {status.why.en}" if item.why else status.why.en
            item = replace(item, status=status.kind, why=said, acting=item)
        translation.items[index] = item
        if not item.given and item.status == INERT:
            del translation.settings[item.ours]  # a default that can do nothing here need not be in the config
    return cfg


def difference(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """What `new` says otherwise than `old`, nested as they are."""
    found: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = difference(value, before)
            if inner:
                found[name] = inner
        elif value != before:
            found[name] = value
    return found


@cache
def _defaults(job: str) -> dict[str, Any]:
    return to_plain(load(job=job, check=False).cfg)


def _followed(ours: dict[str, Any], theirs: dict[str, Any], job: str, settings: Iterable[str]) -> dict[str, Any]:
    """Our defaults, where those that follow another key follow it as in `theirs`: nobody needs to write them."""
    mentioned = tuple(settings)
    for leaf in tree(job).leaves.values():
        if is_interpolation(leaf.default) and not any(key == leaf.key for key in mentioned):
            *sections, name = leaf.key.split(".")
            place, source = ours, theirs
            for section in sections:
                place, source = place[section], source[section]
            place[name] = source[name]
    return ours


def known(key: str, job: str) -> bool:
    """Is this a key of ours, or inside a free mapping of ours?"""
    return tree(job).find(key) is not None


def is_default(key: str, value: Any, job: str) -> bool:
    """Is this what our tree says anyway?"""
    found = tree(job).find(key)
    return found is not None and not found[1] and found[0].default == value


def in_their_words(items: Iterable[Item]) -> dict[str, str]:
    """Our key -> what the user wrote, so that errors can speak their dialect."""
    return {item.ours: item.theirs for item in items if item.ours is not None and item.given}
