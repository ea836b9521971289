"""What each override and each line of a YAML became: our own loader reads them, one by one and all together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from burnish.config.aliases import find_alias
from burnish.config.load import build
from burnish.config.overrides import COMMAND_LINE, Entry, entry_of, read_overrides
from burnish.config.settings import Settings
from burnish.config.tree import tree
from burnish.config.values import is_interpolation, written_as
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation
from burnish.errors import UserError

_HYDRA = "hydra."


@dataclass(frozen=True)
class Said:
    """One entry, who wrote it, and the keys of ours that it sets."""

    entry: Entry
    theirs: str
    given: bool
    keys: tuple[str, ...] = ()
    why: str = ""


@dataclass
class Reading:
    """All entries of one job, in order; `settings` holds what they come to together."""

    translation: Translation
    settings: Settings = field(init=False)
    said: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = Settings(tree(self.translation.job))

    def add_overrides(self, texts: Iterable[str]) -> None:
        """Overrides of the command line, in Hydra's grammar."""
        for text in texts:
            parsed, errors = read_overrides([text])
            name, equals, value = text.partition("=")
            if not errors:
                try:
                    entry = entry_of(parsed[0])
                    name = name if entry.remove else name.lstrip("+")
                    self.add(entry, name)
                    continue
                except UserError as error:
                    errors = [error]
            self._refuse(name.lstrip("+~"), value if equals else None, errors)

    def add(self, entry: Entry, theirs: str = "", given: bool = True) -> None:
        """One entry: what it sets alone says its keys, what it sets after all others says its errors."""
        theirs = theirs or entry.key
        if entry.key.startswith(_HYDRA):
            why = "Hydra's own setting: it says nothing about the run"
            self.translation.items.append(Item(theirs, entry.value, INERT, why=why, given=given))
            return
        before = len(self.settings.errors)
        self.settings.add_all([entry])
        errors = self.settings.errors[before:]
        if errors:
            self._refuse(theirs, entry.value, errors, given)
            return
        alone = Settings(self.settings.tree)
        alone.add_all([entry])
        self.said.append(Said(entry, theirs, given, tuple(alone.values), _why(entry, alone)))

    def finish(self) -> Any:
        """Resolve the interpolations and report every entry; the last that sets a key wins. The config comes back."""
        cfg, errors = build(self.settings)
        broken = {error.key: error for error in errors}
        last = {key: said for said in self.said for key in said.keys}
        for said in self.said:
            if not said.keys:
                self.translation.items.append(self._without_key(said))
            for key in said.keys:
                if last[key] is not said:
                    self.translation.items += _superseded(said, key, last[key])
                elif key in broken:
                    self._refuse(said.theirs, said.entry.value, [broken[key]], said.given)
                else:
                    self.translation.put(self._item(said, key))
        return cfg

    def _item(self, said: Said, key: str) -> Item:
        value = self.settings.values[key].value
        same = key == said.entry.key and not said.why
        status = KEPT if same else CONVERTED
        why = said.why or ("" if said.given else said.entry.origin)
        return Item(said.theirs, said.entry.value, status, key, value, why, said.given)

    def _without_key(self, said: Said) -> Item:
        """Entries that set nothing: an empty section, a key that goes back, a group that is the only one here."""
        entry, found = said.entry, self.settings.tree.find(said.entry.key)
        default = found[0].default if found else None
        if entry.remove:
            return Item(said.theirs, None, CONVERTED, entry.key, default, "taken out: its default holds", said.given)
        if found or entry.key in self.settings.tree.sections:
            return Item(said.theirs, entry.value, KEPT, entry.key, entry.value, "empty: nothing to set", said.given)
        why = "the choice of a section of verl's tree; there is one such section here, with all its keys"
        return Item(said.theirs, entry.value, INERT, why=why, given=said.given)

    def _refuse(self, theirs: str, value: Any, errors: list[UserError], given: bool = True) -> None:
        for error in errors:
            bare = UserError(error.problem, allowed=error.allowed, hint=error.hint)  # the item says key and value
            why = (bare if error.key == theirs else error).text()
            self.translation.items.append(Item(theirs, value, REFUSED, why=why, given=given))


def _superseded(said: Said, key: str, by: Said) -> list[Item]:
    if not said.given:
        return []  # a default of theirs that the user replaced
    where = "" if by.entry.origin == COMMAND_LINE else f" in {by.entry.origin}"
    why = f"set again later{where}: {by.theirs}={written_as(by.entry.value)}"
    return [Item(said.theirs, said.entry.value, INERT, key, said.entry.value, why)]


def _why(entry: Entry, alone: Settings) -> str:
    """What the loader did to this entry beyond putting it into its place."""
    reasons = []
    is_ours = entry.key in alone.tree.sections or alone.tree.find(entry.key) is not None
    found = None if is_ours else find_alias(entry.key, alone.tree.job)
    if found:
        reasons.append(found[0].why)
    for key, setting in alone.values.items():
        if _changed(entry.value, setting.value):
            reasons.append(f"{written_as(entry.value)} is written {written_as(setting.value)} here")
        if key != entry.key and not found and not reasons:
            reasons.append(f"{entry.key}={written_as(entry.value)} means this key")
    return "; ".join(dict.fromkeys(reasons))


def _changed(theirs: Any, ours: Any) -> bool:
    """Did the value become another one? Another spelling of a number or switch, or a list of one, is the same."""
    if is_interpolation(theirs) or theirs == ours or isinstance(theirs, dict):
        return False
    if isinstance(ours, list):
        written = theirs if isinstance(theirs, list) else str(theirs).split(",") if theirs is not None else []
        return [str(one).strip() for one in written if one != ""] != [str(one) for one in ours]
    if isinstance(ours, bool):
        return str(theirs).lower() != str(ours).lower()
    if isinstance(ours, int | float):
        return float(theirs) != float(ours) if isinstance(theirs, int | float | str) else True
    return str(theirs) != str(ours) and not (isinstance(theirs, bool) and str(theirs).lower() == ours)
