"""Translator: reports on every override and YAML entry. Burnish's config loader parses them one by one and together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.config.aliases import find_alias
from burnish.config.load import build
from burnish.config.overrides import COMMAND_LINE, Entry, entry_of, read_overrides
from burnish.config.settings import Setting, Settings, why_unset
from burnish.config.tree import tree
from burnish.config.values import is_interpolation, is_unset, written_as
from burnish.config.verl_only import find_verl_only
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation
from burnish.dialects.verl.importance import convert_importance, is_importance_key
from burnish.errors import UserError

_HYDRA = ("hydra.", "hydra/")
_FILE_FOR_SECTION = "selects a file of verl's config tree for a section, which is not supported"
_SCALARS = (bool, int, float, type(None))


@dataclass(frozen=True)
class SourceEntry:
    """One entry, its source spelling, and the Burnish keys that it sets."""

    entry: Entry
    theirs: str
    explicit: bool
    keys: tuple[str, ...] = ()
    why: str = ""


@dataclass
class Translator:
    """All entries of one job, in order; `settings` holds the merged result."""

    translation: Translation
    other_keys: str = ""  # a job whose keys the program accepts without using them
    settings: Settings = field(init=False)
    entries: list[SourceEntry] = field(default_factory=list)
    importance: list[Entry] = field(default_factory=list)  # which have a meaning only together

    def __post_init__(self) -> None:
        self.settings = Settings(tree(self.translation.job))

    def add_overrides(self, texts: Iterable[str]) -> None:
        """Add command-line overrides in Hydra's grammar."""
        for text in texts:
            parsed, errors = read_overrides([text])
            name, equals, value = text.partition("=")
            if "@" in name:
                errors = [UserError(_FILE_FOR_SECTION, hint="--config-name=ppo_megatron_trainer, or the file's keys")]
            if not errors:
                try:
                    entry = entry_of(parsed[0])
                    name = name if entry.remove else name.lstrip("+")
                    self.add(entry, name)
                    continue
                except UserError as error:
                    errors = [error]
            self._refuse(name.lstrip("+~"), value if equals else None, errors)

    def add(self, entry: Entry, theirs: str = "", explicit: bool = True) -> None:
        """Add one entry. Loading it after all previous ones shows its errors, loading it alone shows its keys."""
        theirs = theirs or entry.key
        if entry.key.startswith(_HYDRA):
            why = "a setting of Hydra that does not affect the run"
            self.translation.items.append(Item(theirs, entry.value, INERT, why=why, explicit=explicit))
            return
        if self._is_of_other_job(entry.key):
            why = f"a setting of `burnish {self.other_keys}`, which `burnish {self.translation.job}` does not use"
            self.translation.items.append(Item(theirs, entry.value, INERT, why=why, explicit=explicit))
            return
        if is_importance_key(entry.key) and self.translation.job == "train":
            self.importance.append(entry)
            return
        num_errors = len(self.settings.errors)
        self.settings.add_all([entry])
        errors = self.settings.errors[num_errors:]
        if errors:
            self._refuse(theirs, entry.value, errors, explicit)
            return
        alone = Settings(self.settings.tree)
        alone.add_all([entry])
        keys = tuple(key for key, setting in alone.values.items() if self._takes(key, setting.value))
        self.entries.append(SourceEntry(entry, theirs, explicit, keys, _explain(entry, alone)))

    def _is_of_other_job(self, key: str) -> bool:
        """Whether only the other job has this key, under this name or as an alias of a key that this job has not."""
        job = self.translation.job
        if not self.other_keys or is_known(key, job):
            alias = find_alias(key, job) if self.other_keys and self.settings.tree.find(key) is None else None
            if alias is None or any(is_known(target, job) for target in alias[1]):
                return False
        return is_known(key, self.other_keys)

    def _takes(self, key: str, value: Any) -> bool:
        """Whether the settings took the value; null in one spelling leaves a key to another."""
        return value is not None or key not in self.settings.values or self.settings.values[key].value is None

    def finish(self, defaults: Mapping[str, Any] | None = None) -> Any:
        """Resolve interpolations, report on every entry, and return the config. Per key, the last entry wins.

        `defaults` are the source system's, to which interpolations may refer.
        """
        complete = Settings(self.settings.tree)
        complete.values = {key: Setting(value, "") for key, value in (defaults or {}).items()} | self.settings.values
        cfg, errors = build(complete)
        self.settings.values = {key: value for key, value in self.settings.values.items() if key in complete.values}
        errors_by_key = {error.key: error for error in errors}
        last = {key: source for source in self.entries for key in source.keys}
        for source in self.entries:
            if not source.keys:
                self.translation.items.append(self._item_without_key(source))
            for key in source.keys:
                if last[key] is not source:
                    self.translation.items += _superseded(source, key, last[key])
                elif key in errors_by_key:
                    self._refuse(source.theirs, source.entry.value, [errors_by_key[key]], source.explicit)
                elif key not in self.settings.values:
                    self.translation.items += _removed(source, key)
                else:
                    self.translation.add(self._item(source, key))
        convert_importance(self.importance, self.translation)
        return cfg

    def _item(self, source: SourceEntry, key: str) -> Item:
        value = self.settings.values[key].value
        same = key == source.entry.key and not source.why
        status = KEPT if same else CONVERTED
        why = source.why or ("" if source.explicit else source.entry.origin)
        return Item(source.theirs, source.entry.value, status, key, value, why, source.explicit)

    def _item_without_key(self, source: SourceEntry) -> Item:
        """Report an entry that sets nothing: an empty section, a removed key, a config group with one choice here."""
        entry, match = source.entry, self.settings.tree.find(source.entry.key)
        default = match[0].default if match else None
        if entry.remove:
            why = "removed: its default applies"
            return Item(source.theirs, None, CONVERTED, entry.key, default, why, source.explicit)
        if match and not match[1] and is_unset(match[0], entry.value):
            return Item(source.theirs, entry.value, CONVERTED, why=why_unset(entry.value), explicit=source.explicit)
        if match or entry.key in self.settings.tree.sections:
            why = "empty: nothing to set"
            return Item(source.theirs, entry.value, KEPT, entry.key, entry.value, why, source.explicit)
        alias = find_alias(entry.key, self.settings.tree.job)
        if alias is not None and self.settings.refers_to(entry.value, alias[1]):
            why = f"{alias[0].why}, which refers to another name of the same key"
            return Item(source.theirs, entry.value, CONVERTED, why=why, explicit=source.explicit)
        keys = (entry.key, *(alias[1] if alias else ()))
        row = next((row for key in keys if (row := find_verl_only(key, self.settings.tree.job))), None)
        if row is not None:
            return Item(source.theirs, entry.value, INERT, why=row.reason(entry.value), explicit=source.explicit)
        if alias is not None:
            why = f"{alias[0].why}; {why_unset(entry.value)}"
            return Item(source.theirs, entry.value, CONVERTED, why=why, explicit=source.explicit)
        why = "selects a config group of verl; Burnish has a single section with all its keys"
        return Item(source.theirs, entry.value, INERT, why=why, explicit=source.explicit)

    def _refuse(self, theirs: str, value: Any, errors: list[UserError], explicit: bool = True) -> None:
        for error in errors:
            short = UserError(error.problem, allowed=error.allowed, hint=error.hint)  # the item has key and value
            why = (short if error.key == theirs else error).text()
            self.translation.items.append(Item(theirs, value, REFUSED, why=why, explicit=explicit))


def is_known(key: str, job: str) -> bool:
    """Whether a job has a key, a section or an alias of this name."""
    config_tree = tree(job)
    return config_tree.find(key) is not None or key in config_tree.sections or find_alias(key, job) is not None


def _removed(source: SourceEntry, key: str) -> list[Item]:
    """A later `~key` or `key=` removed what this entry set."""
    if not source.explicit:
        return []
    why = "removed by a later entry: its default applies"
    return [Item(source.theirs, source.entry.value, INERT, key, source.entry.value, why)]


def _superseded(source: SourceEntry, key: str, later: SourceEntry) -> list[Item]:
    if not source.explicit:
        return []  # a default that the user replaced needs no report
    where = "" if later.entry.origin == COMMAND_LINE else f" in {later.entry.origin}"
    why = f"set again later{where}: {later.theirs}={written_as(later.entry.value)}"
    return [Item(source.theirs, source.entry.value, INERT, key, source.entry.value, why)]


def _explain(entry: Entry, alone: Settings) -> str:
    """How the loader changed this entry's key or value."""
    reasons = []
    is_key = entry.key in alone.tree.sections or alone.tree.find(entry.key) is not None
    alias = None if is_key else find_alias(entry.key, alone.tree.job)
    if alias:
        reasons.append(alias[0].why)
    for key, setting in alone.values.items():
        if _changed(entry.value, setting.value):
            theirs = "empty" if entry.value == "" else written_as(entry.value)
            reasons.append(f"{theirs} is written {written_as(setting.value)} here")
        if key != entry.key and not alias and not reasons:
            reasons.append(f"{entry.key}={written_as(entry.value)} sets this key")
    return "; ".join(dict.fromkeys(reasons))


def _changed(theirs: Any, ours: Any) -> bool:
    """Whether the value changed, beyond the spelling of a number or switch or a one-element list."""
    if (
        isinstance(theirs, bool) != isinstance(ours, bool)
        and not isinstance(theirs, str)
        and not isinstance(ours, list)
    ):
        return True  # false for a number, 1 for a switch
    if is_interpolation(theirs) or theirs == ours or isinstance(theirs, dict):
        return False
    if isinstance(ours, list):
        parts = theirs if isinstance(theirs, list) else str(theirs).split(",") if theirs is not None else []
        return [str(part).strip() for part in parts if part != ""] != [str(entry) for entry in ours]
    if isinstance(ours, bool):
        return str(theirs).lower() != str(ours).lower()
    if isinstance(ours, int | float):
        return float(theirs) != float(ours) if isinstance(theirs, int | float | str) else True
    return str(theirs) != str(ours) and not (isinstance(theirs, bool) and str(theirs).lower() == ours)
