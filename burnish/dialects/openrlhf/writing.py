"""Writing: from the flags of a command to items of a Translation, each flag in the user's own spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from burnish.config.tree import tree
from burnish.config.values import convert
from burnish.dialects.openrlhf.command import Command
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation, is_default
from burnish.errors import UserError

HIDDEN = "***"
AGAIN = "given again later, which counts"
BUILT_IN = "(OpenRLHF itself)"  # what it does without a flag that says so


class _Theirs:
    """Our key takes their value as it is."""


THEIRS = _Theirs()


@dataclass(frozen=True)
class Row:
    """A flag that is a key of ours, or several; `convert` where the value changes on the way."""

    flag: str
    ours: str | tuple[str, ...]
    why: str = ""
    convert: Callable[[Any], Any] | None = None


class Writing:
    """Puts flags into a Translation. A default is written out only where ours differs."""

    def __init__(self, command: Command, translation: Translation) -> None:
        self.command = command
        self.out = translation
        self.told: set[str] = set()  # flags that have an item, or whose default needs none

    def get(self, name: str) -> Any:
        return self.command.get(name)

    def given(self, name: str) -> bool:
        return name in self.command.given

    def name(self, name: str) -> str:
        """The flag as it is spelled in this command's version."""
        return self.command.spelled(name)

    def put(self, name: str, ours: str | Iterable[str], value: Any = THEIRS, why: str = "") -> None:
        """This flag is these keys of ours, with this value."""
        theirs = self.get(name)
        plain = list(theirs) if isinstance(theirs, tuple) else theirs
        ours_value = plain if value is THEIRS else value
        status = KEPT if _same(ours_value, plain) else CONVERTED
        for key in [ours] if isinstance(ours, str) else ours:
            wrong = self._wrong(key, ours_value)
            if wrong:
                self.refuse(name, wrong)
                return
            self._item(name, status, why, key, ours_value)

    def _wrong(self, key: str, value: Any) -> str | None:
        """Why our key cannot hold this value, without our key's name: the user has not seen it."""
        leaf, rest = tree(self.out.job).find(key)
        try:
            if not rest:
                convert(leaf, value)
        except UserError as error:
            allowed = error.allowed if isinstance(error.allowed, str) else ", ".join(map(str, error.allowed or ()))
            return f"{error.problem}: {allowed}" if allowed else error.problem
        return None

    def rows(self, rows: Iterable[Row]) -> None:
        for row in rows:
            value = self.get(row.flag)
            self.put(row.flag, row.ours, row.convert(value) if row.convert else THEIRS, row.why)

    def inert(self, name: str, why: str) -> None:
        """Understood, and without effect here."""
        self._item(name, INERT, why)

    def elsewhere(self, name: str, why: str) -> None:
        """Converted into something that is no key: an environment variable, a part of another key."""
        self._item(name, CONVERTED, why)

    def refuse(self, name: str, why: str) -> None:
        """Cannot be done, or not exactly; also for a default that does not go with what was given."""
        self._item(name, REFUSED, why, must=True)

    def itself(self, ours: str, value: Any, why: str) -> None:
        """What OpenRLHF does though no flag says so."""
        if not is_default(ours, value, self.out.job):
            self.out.put(Item(BUILT_IN, None, CONVERTED, ours, value, why, given=False))

    def _item(
        self, name: str, status: str, why: str, ours: str | None = None, value: Any = None, must: bool = False
    ) -> None:
        self.told.add(name)
        given = self.given(name)
        if not given and not must and (ours is None or is_default(ours, value, self.out.job)):
            return
        shown = HIDDEN if self.command.vocabulary.flags[name].secret else self.get(name)
        shown = list(shown) if isinstance(shown, tuple) else shown
        self.out.put(Item(self.name(name), shown, status, ours, value, why, given=given))

    def finish(self) -> Translation:
        """What could not be read; what was typed twice; and whatever nobody spoke for is not passed over."""
        for name, typed in self.command.repeated:
            shown = HIDDEN if self.command.vocabulary.flags[name].secret else typed.value
            again = self.command.given[name]
            if again.value == typed.value or again.spelling == typed.spelling:
                self.out.put(Item(typed.spelling, shown, INERT, why=AGAIN))
            else:
                why = f"{again.spelling} is the same setting, and set differently: leave one of them out"
                self.out.put(Item(typed.spelling, shown, REFUSED, why=why))
        for misread in self.command.misread:
            self.out.put(Item(misread.typed, misread.value, REFUSED, why=misread.why))
        for name in self.command.given:
            if name not in self.told:
                self.refuse(name, "is known, and has no meaning here yet")
        return self.out


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
