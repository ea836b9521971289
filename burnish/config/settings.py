"""Settings: the user's entries resolved to keys, with errors for unknown and conflicting ones."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.config.aliases import GROUPS, VALUES, find_alias
from burnish.config.overrides import Entry
from burnish.config.tree import Leaf, Tree, kinds
from burnish.config.values import convert, convert_entry, is_unset
from burnish.config.verl_only import find_verl_only
from burnish.errors import UserError


@dataclass
class Setting:
    """A value set by the user, and where."""

    value: Any
    origin: str
    written: str = ""  # the key as the user wrote it, if that is an alias


class Settings:
    """Collects entries in order; the last entry of a key wins."""

    def __init__(self, keys: Tree) -> None:
        self.tree = keys
        self.values: dict[str, Setting] = {}
        self.notices: list[str] = []
        self.errors: list[UserError] = []

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            try:
                self._add(entry)
            except UserError as error:
                self.errors.append(error)

    def _add(self, entry: Entry, written: str = "") -> None:
        group = GROUPS.get((self.tree.job, entry.key, entry.value)) if isinstance(entry.value, str) else None
        if group is not None:
            for key, value in group.items():
                self._add(Entry(key, value, entry.origin), written=f"{entry.key}={entry.value}")
        elif isinstance(entry.value, str) and (choices := _choices(entry.key, self.tree.job)):
            problem = "not a choice of this config group that is supported"
            raise UserError(problem, key=entry.key, value=entry.value, allowed=choices)
        elif entry.key in self.tree.sections:
            self._add_section(entry, written)
        elif self.tree.find(entry.key) is not None:
            self._add_leaf(entry, written)
        else:
            self._add_alias(entry)

    def _add_section(self, entry: Entry, written: str) -> None:
        """A mapping sets key by key; `true` sets `enable`; removing a section removes all its keys."""
        if entry.remove:
            for key in [key for key in self.values if key.startswith(f"{entry.key}.")]:
                del self.values[key]
            return
        if isinstance(entry.value, Mapping) or entry.value is None:
            for name, value in (entry.value or {}).items():
                self.add_all([Entry(f"{entry.key}.{name}", value, entry.origin)])
            return
        switch = f"{entry.key}.enable"
        if isinstance(entry.value, bool) and switch in self.tree.leaves:
            self._add_leaf(Entry(switch, entry.value, entry.origin), written)
            return
        keys = [key.removeprefix(f"{entry.key}.") for key in self.tree.leaves if key.startswith(f"{entry.key}.")]
        raise UserError("is a section; set one of its keys", key=entry.key, value=entry.value, allowed=keys[:12])

    def _add_leaf(self, entry: Entry, written: str) -> None:
        leaf, rest = self.tree.get(entry.key)
        if entry.remove:
            for key in [key for key in self.values if key == entry.key or key.startswith(f"{entry.key}.")]:
                del self.values[key]
            return
        if not rest and is_unset(leaf, entry.value):
            self._leave_unset(entry, written)
            return
        if rest:
            value = convert_entry(leaf, entry.value)
        elif leaf.free and isinstance(entry.value, Mapping) and isinstance(leaf.default, dict):
            self._add_free(leaf, entry)
            return
        else:
            value = convert(leaf, self._as_typed(leaf, entry))
        before = self.values.get(entry.key)
        if value is None and before is not None and before.value is not None and before.written != written:
            return  # null in one spelling leaves the key to the other
        self._check_conflict(entry, value, written)
        self.values[entry.key] = Setting(value, entry.origin, written)

    def _leave_unset(self, entry: Entry, written: str) -> None:
        """Null or empty text, for a key that has neither: an earlier value of the same spelling no longer applies."""
        before = self.values.get(entry.key)
        if before is not None and before.written == written:
            del self.values[entry.key]
        self.notices.append(f"{written or entry.key} is {why_unset(entry.value)}.")

    def _add_free(self, leaf: Leaf, entry: Entry) -> None:
        """Merge a mapping into a free mapping: names it does not contain keep their values."""
        for name, value in entry.value.items():
            self.values[f"{leaf.key}.{name}"] = Setting(convert_entry(leaf, value), entry.origin)

    def _as_typed(self, leaf: Leaf, entry: Entry) -> Any:
        """Text fields keep numbers as typed (007, 1e5); other spellings of values are replaced."""
        value, hints = entry.value, set(kinds(leaf.hint))
        if entry.text and str in hints and not {int, float} & hints and _is_number(value):
            return entry.text
        entries = value if isinstance(value, list) else [value]
        if entry.text and list[str] in hints and leaf.facts.comma_separated and any(map(_is_number, entries)):
            return entry.text.strip("[]")
        if isinstance(value, str) and (leaf.key, value) in VALUES:
            ours = VALUES[leaf.key, value]
            self.notices.append(f"{leaf.key}={value} is interpreted as {leaf.key}={ours}.")
            return ours
        return value

    def _add_alias(self, entry: Entry) -> None:
        match = find_alias(entry.key, self.tree.job)
        if match is None and isinstance(entry.value, Mapping) and entry.value:
            # An unknown section may contain aliases.
            self.add_all(Entry(f"{entry.key}.{name}", value, entry.origin) for name, value in entry.value.items())
            return
        if match is None:
            self._add_foreign(entry, entry.key)
            return
        alias, targets = match
        if self.refers_to(entry.value, targets):
            return  # another spelling has the value
        value = alias.convert(entry.value) if alias.convert is not None and not entry.remove else entry.value
        for target in targets:
            known = self.tree.find(target) is not None or target in self.tree.sections
            if not known and find_alias(target, self.tree.job) is None:
                self._add_foreign(entry, target)
                return
            self._add(Entry(target, value, entry.origin, remove=entry.remove), written=entry.key)
        self.notices.append(f"{entry.key} ({alias.why}) is interpreted as {' and '.join(targets)}.")

    def refers_to(self, value: Any, targets: tuple[str, ...]) -> bool:
        """Whether a value is an interpolation of another spelling of the same keys."""
        reference = _REFERENCE.match(value) if isinstance(value, str) else None
        alias = find_alias(reference[1], self.tree.job) if reference else None
        return alias is not None and not set(alias[1]).isdisjoint(targets)

    def _add_foreign(self, entry: Entry, key: str) -> None:
        """A key of verl that has no counterpart is accepted where it changes no result, else refused by name."""
        row = find_verl_only(key, self.tree.job)
        if row is None:
            raise unknown_key(entry.key, self.tree)
        if entry.remove:
            return
        if row.refuses(entry.value):
            hint = row.hint(entry.key, entry.value)
            raise UserError(row.why, key=entry.key, value=entry.value, hint=hint)
        self.notices.append(f"{entry.key} has no effect here: {row.reason(entry.value)}.")

    def _check_conflict(self, entry: Entry, value: Any, written: str) -> None:
        """Two spellings of one key must not have different values in the same source."""
        before = self.values.get(entry.key)
        if (
            before is None
            or before.origin != entry.origin
            or before.value in (None, value)
            or before.written == written
        ):
            return
        first, second = before.written or entry.key, written or entry.key
        raise UserError(
            f"{first} and {second} are the same key, but have different values ({before.value!r} and {value!r})",
            key=entry.key,
            hint=f"only {entry.key}=...",
        )


_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)")
NEWEST_VERL = "0.9"  # whose keys are known
# How similar two names are that are probably the same, by the ratio of difflib; and how long a telling name is.
_SIMILAR, _VERY_SIMILAR, _TELLING = 0.7, 0.85, 9
# Names that other trainers give to the last part of a key.
_SYNONYMS = {
    "learning_rate": "lr",
    "epochs": "total_epochs",
    "num_epochs": "total_epochs",
    "num_train_epochs": "total_epochs",
    "max_steps": "total_training_steps",
    "save_steps": "save_freq",
    "eval_steps": "test_freq",
    "output_dir": "default_local_dir",
}


def _choices(key: str, job: str) -> list[str]:
    """The choices of a config group; empty if the key is none."""
    return [choice for group_job, group, choice in GROUPS if (group_job, group) == (job, key)]


def why_unset(value: Any) -> str:
    """Why a null or empty value has no effect."""
    if value is None:
        return "null: not set, so its default applies"
    return "empty: not set, so its default applies (maybe a shell variable is not set)"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unknown_key(key: str, keys: Tree, *, explained: bool = False) -> UserError:
    """The error for an unknown key, with the nearest known key; where keys are explained, it may be a section."""
    suggestion = nearest_key(key, keys, sections=explained)
    if explained:
        hint = f"burnish explain {suggestion or 'SECTION'}"
        return UserError(f"no such key{f'. Did you mean {suggestion}?' if suggestion else ''}", key=key, hint=hint)
    if suggestion is not None:
        return UserError(f"no such key. Did you mean {suggestion}?", key=key, hint=f"{suggestion}=...")
    problem = f"no such key, here or in verl up to {NEWEST_VERL}"
    return UserError(problem, key=key, hint="leave it out; `burnish explain SECTION` lists the keys that exist")


def nearest_key(key: str, keys: Tree, *, sections: bool = False) -> str | None:
    """The key, or section, that was probably meant; None if none is near."""
    names = [*keys.leaves, *(keys.sections if sections else ())]
    parts = key.replace("-", "_").split(".")
    ends = [name for name in names if f".{name}".endswith(f".{'.'.join(parts)}")]
    similar = [name for name in names if _is_similar(parts, name.split("."))]
    if ends or similar:
        return ends[0] if ends else max(similar, key=lambda name: difflib.SequenceMatcher(None, name, key).ratio())
    synonym = ".".join([*parts[:-1], _SYNONYMS.get(parts[-1], "")])
    if synonym in names:
        return synonym
    same = [name for name in names if name.rpartition(".")[2] == parts[-1]]
    inside = [name for name in same if _is_inside(parts, name.split("."))]  # a section is missing
    if inside:
        return min(inside, key=len)
    return _by_last_part(parts[-1], names)


def _is_similar(parts: list[str], others: list[str]) -> bool:
    """Whether two keys differ in the spelling of their parts alone."""
    pairs = zip(parts, others, strict=False)
    return len(parts) == len(others) and all(
        part == other or difflib.SequenceMatcher(None, part, other).ratio() >= _SIMILAR for part, other in pairs
    )


def _is_inside(parts: list[str], others: list[str]) -> bool:
    """Whether the parts occur among the others in this order."""
    rest = iter(others)
    return len(parts) > 1 and all(part in rest for part in parts)


def _by_last_part(last: str, names: list[str]) -> str | None:
    """The key with this last part, if the part is long and only one key has it."""
    lasts = Counter(name.rpartition(".")[2] for name in names)
    telling = [part for part, number in lasts.items() if number == 1 and len(part) >= _TELLING]
    match = difflib.get_close_matches(last, telling, n=1, cutoff=_VERY_SIMILAR)
    return next(name for name in names if name.rpartition(".")[2] == match[0]) if match else None
