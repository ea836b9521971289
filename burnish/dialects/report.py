"""Translation: the Burnish settings of another system's command, with a report on every source setting."""

from __future__ import annotations

import re
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
from burnish.errors import ExitStatus, NotSupportedYet, UserError, UserErrors
from burnish.redact import redact

# Status of a source setting in the report.
KEPT = "kept"  # a Burnish key with the same meaning has the same value
CONVERTED = "converted"  # other units, another value name, or several keys: `why` shows the arithmetic
INERT = "inert"  # understood, but without effect in this run: `why` explains
PENDING = "pending"  # understood and its key exists, but `burnish train` does not support it yet
REFUSED = "refused"  # not possible, or not exactly: `why` says what to type instead
STATUSES = (KEPT, CONVERTED, INERT, PENDING, REFUSED)
KEY_STATUSES = (INERT, PENDING, REFUSED)  # of keys that do not act, as burnish.config.status names them
# Statuses with which a command does not start, and the exit status of `burnish run` and of the checks.
BLOCKING = {REFUSED: ExitStatus.REFUSED, PENDING: ExitStatus.UNSUPPORTED}


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
    original: Item | None = None  # for a key that does not act: the item before the key's status was applied

    def plain(self) -> dict[str, Any]:
        """The fields that `convert --json` prints, without secrets."""
        names = ("theirs", "value", "status", "ours", "ours_value", "why")
        shown = {"value": without_secret(self.theirs, self.value)}
        shown["ours_value"] = without_secret(self.ours or "", self.ours_value)
        return {name: getattr(self, name) for name in names} | shown


@dataclass
class Translation:
    """`settings` maps Burnish keys to values; of two settings of one key, the later wins."""

    dialect: str
    job: str  # train, sft, eval, generate
    items: list[Item] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # variables that the run needs, such as WANDB_API_KEY
    prints_config: bool = False  # the command asks for its config, not for a run
    notes: list[str] = field(default_factory=list)  # on the translation as a whole; `convert` prints them

    def add(self, item: Item) -> None:
        """Add one item. If its Burnish key is pending, refused or inert, the item gets that status."""
        key = item.ours
        if key is not None and item.status in (KEPT, CONVERTED):
            status = status_of(key, item.ours_value, job=self.job)
            if status.kind in KEY_STATUSES and not is_default(key, item.ours_value, self.job):
                why = f"{item.why}; {status.text()}" if item.why else status.text()
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

    def blockers(self) -> list[Item]:
        """The settings with which `burnish run` does not start: refused ones first, then those not supported yet."""
        return [item for status in BLOCKING for item in self.items if item.status == status]

    @property
    def exit_status(self) -> ExitStatus:
        """3 if a setting is refused, else 0: settings that are not supported yet are translated too."""
        return ExitStatus.REFUSED if self.count(REFUSED) else ExitStatus.OK

    @property
    def run_status(self) -> ExitStatus:
        """The status with which `burnish run` and every check of this command exit if it cannot start."""
        return next((exit_status for status, exit_status in BLOCKING.items() if self.count(status)), ExitStatus.OK)


def apply_statuses(translation: Translation, *, here: bool = False) -> None:
    """Update each item's status from the complete config.

    Whether a key has an effect can depend on other keys, which are only known once all items are added, and on the
    machine. `here` means this machine; otherwise one with GPUs, so that a translation is the same everywhere.
    """
    cfg = load(values=translation.settings, job=translation.job, check=False).cfg
    if not here and getattr(getattr(cfg, "trainer", None), "device", None) == "auto":
        cfg.trainer.device = "cuda"
    for index, item in enumerate(translation.items):
        key = item.ours
        if key is None or translation.settings.get(key, translation) != item.ours_value:
            continue
        item = item.original or item
        if item.status not in (KEPT, CONVERTED):
            continue
        status = status_in(cfg, key, item.ours_value, translation.job)
        if status.kind in KEY_STATUSES:
            why = f"{item.why}; {status.text()}" if item.why else status.text()
            item = replace(item, status=status.kind, why=why, original=item)
        translation.items[index] = item
        if not item.explicit and item.status == INERT:
            del translation.settings[key]  # keep defaults without effect out of the config


def add_config_errors(translation: Translation) -> None:
    """Mark every setting that loading the config refuses, as far as no item says so yet."""
    errors = [error for error in load_errors(translation) if not _is_missing(error, translation)]
    if not errors:
        return
    known = {name for item in translation.blockers() for name in (item.ours, item.theirs)}
    names = source_names(translation.items)
    for error in sorted(errors, key=lambda error: _index_of(error.key, translation) is None):
        if error.key in known:
            continue
        refused = _error_item(error, PENDING if isinstance(error, NotSupportedYet) else REFUSED, names)
        index = _index_of(error.key, translation)
        if _is_reported(refused, translation) or (index is None and _follows_from_blockers(translation)):
            continue
        if index is None:
            translation.items.append(refused)
        else:
            item = translation.items[index]
            translation.items[index] = replace(item, status=refused.status, why=refused.why, original=None)


def _is_reported(refused: Item, translation: Translation) -> bool:
    """Whether another key of the same source setting is refused for the same reason, such as the reference's."""
    return any((item.theirs, item.why) == (refused.theirs, refused.why) for item in translation.blockers())


def _follows_from_blockers(translation: Translation) -> bool:
    """Whether an error of a key that no setting sets follows from what is refused: its default applies instead.

    A verl command could set the key, so there the error is reported.
    """
    return translation.dialect != "verl" and bool(translation.blockers())


def load_errors(translation: Translation) -> list[UserError]:
    """What loading the settings refuses. `burnish run` loads them in the same way."""
    try:
        load(values=translation.settings, job=translation.job)
    except UserError as error:
        return error.errors if isinstance(error, UserErrors) else [error]
    return []


def missing_keys(translation: Translation) -> list[str]:
    """Required keys that have no value."""
    return [error.key or "" for error in load_errors(translation) if _is_missing(error, translation)]


def _is_missing(error: UserError, translation: Translation) -> bool:
    return error.value is None and error.key is not None and not translation.settings.get(error.key)


def _index_of(key: str | None, translation: Translation) -> int | None:
    """The place of the item that sets a key."""
    for index, item in enumerate(translation.items):
        if key is not None and item.ours == key and item.status in (KEPT, CONVERTED):
            return index
    return None


def _error_item(error: UserError, status: str, names: dict[str, str]) -> Item:
    """An item with Burnish keys replaced by the names that the user wrote."""
    text = UserError(error.problem, allowed=error.allowed, hint=error.hint).text()
    for key in sorted(names, key=len, reverse=True):  # longest first: one key may be a prefix of another
        separator = " " if names[key].startswith("-") else "="
        text = text.replace(f"{key}=", f"{names[key]}{separator}").replace(key, names[key])
    text = re.sub(r"(--[\w.-]+) false\b", r"no \1", re.sub(r"(--[\w.-]+) true\b", r"\1", text))  # switches
    return Item(names.get(error.key or "", error.key or ""), error.value, status, error.key, why=text, explicit=False)


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


def summarize(translation: Translation) -> str:
    """One paragraph: the source system, and the number of settings by status. `convert` lists as many of each."""
    listed = [item for item in translation.items if item.explicit or item.status in BLOCKING]
    counts = {status: sum(item.status == status for item in listed) for status in _STATUS_TEXTS}
    texts = ", ".join(text.format(count) for status, text in _STATUS_TEXTS.items() if (count := counts[status]))
    name = DISPLAY_NAMES.get(translation.dialect, translation.dialect)
    num_defaults = (
        sum(item.status in (KEPT, CONVERTED) for item in translation.items) - counts[KEPT] - counts[CONVERTED]
    )
    defaults = (
        f" {num_defaults} defaults of {name} differ from Burnish's and are set explicitly." if num_defaults else ""
    )
    settings = f": {texts}" if texts else ""
    return f"{name} command, translated to `burnish {translation.job}`{settings}.{defaults}"


DISPLAY_NAMES = {"verl": "verl", "openrlhf": "OpenRLHF", "mindspeed": "MindSpeed RL"}
_STATUS_TEXTS = {
    KEPT: "{} settings kept",
    CONVERTED: "{} converted",
    INERT: "{} without effect",
    PENDING: "{} not supported yet",
    REFUSED: "{} refused",
}


def setting_text(name: str, value: Any) -> str:
    """A setting as it is typed, `--flag value` or `key=value`, without a secret."""
    if value is None:
        return name
    value = without_secret(name, value)
    return f"{name} {value}" if name.startswith("-") else f"{name}={value}"


def without_secret(name: str, value: Any) -> Any:
    """The value of a setting as it may be printed."""
    return redact({name: value})[name]
