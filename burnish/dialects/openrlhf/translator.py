"""Translator: turns the flags of a command into items of a Translation, in the user's spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from burnish.config.tree import tree
from burnish.config.values import convert
from burnish.dialects.openrlhf.parser import Command
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation, is_default
from burnish.errors import UserError
from burnish.redact import HIDDEN

REPEATED = "repeated later; the last value applies"
BUILT_IN = "(OpenRLHF itself)"  # source of behavior that no flag controls
_UNCHANGED = object()
_UNSUPPORTED = "a valid OpenRLHF flag, but not supported"


@dataclass(frozen=True)
class KeyMapping:
    """A flag and the Burnish keys that it sets; `convert` if the value changes."""

    flag: str
    ours: str | tuple[str, ...]
    why: str = ""
    convert: Callable[[Any], Any] | None = None


class Translator:
    """Adds flags to a Translation. A default is added only if Burnish's differs."""

    def __init__(self, command: Command, translation: Translation) -> None:
        self.command = command
        self.translation = translation
        self.handled: set[str] = set()  # flags that have an item, or whose default needs none

    def get(self, name: str) -> Any:
        return self.command.get(name)

    def has(self, name: str) -> bool:
        """Whether the user wrote the flag."""
        return name in self.command.values

    def spelling(self, name: str) -> str:
        """The flag's name in the OpenRLHF version of this command."""
        return self.command.spelling(name)

    def set(self, name: str, ours: str | Iterable[str], value: Any = _UNCHANGED, why: str = "") -> None:
        """Set Burnish keys to `value`, by default the flag's own."""
        theirs = self.get(name)
        plain = list(theirs) if isinstance(theirs, tuple) else theirs
        ours_value = plain if value is _UNCHANGED else value
        status = KEPT if _same(ours_value, plain) else CONVERTED
        for key in [ours] if isinstance(ours, str) else ours:
            problem = self._problem(key, ours_value)
            if problem:
                self.refuse(name, problem)
                return
            self._add(name, status, why, key, ours_value)

    def _problem(self, key: str, value: Any) -> str | None:
        """Why a key cannot have this value. The key's name is left out, since the user did not write it."""
        match = tree(self.translation.job).find(key)
        assert match is not None, key
        leaf, rest = match
        try:
            if not rest:
                convert(leaf, value)
        except UserError as error:
            allowed = error.allowed if isinstance(error.allowed, str) else ", ".join(map(str, error.allowed or ()))
            return f"{error.problem}: {allowed}" if allowed else error.problem
        return None

    def set_all(self, mappings: Iterable[KeyMapping]) -> None:
        for mapping in mappings:
            value = self.get(mapping.flag)
            ours_value = mapping.convert(value) if mapping.convert else _UNCHANGED
            self.set(mapping.flag, mapping.ours, ours_value, mapping.why)

    def inert(self, name: str, why: str) -> None:
        """Report a flag without effect."""
        self._add(name, INERT, why)

    def converted(self, name: str, why: str) -> None:
        """Report a flag that sets something other than a key: an environment variable, a part of another key."""
        self._add(name, CONVERTED, why)

    def refuse(self, name: str, why: str) -> None:
        """Refuse a flag, or a default that conflicts with other flags."""
        self._add(name, REFUSED, why, always=True)

    def set_implicit(self, ours: str, value: Any, why: str) -> None:
        """Set a key to what OpenRLHF does without a flag for it."""
        if not is_default(ours, value, self.translation.job):
            self.translation.add(Item(BUILT_IN, None, CONVERTED, ours, value, why, explicit=False))

    def _add(
        self, name: str, status: str, why: str, ours: str | None = None, value: Any = None, always: bool = False
    ) -> None:
        self.handled.add(name)
        explicit = self.has(name)
        if not explicit and not always and (ours is None or is_default(ours, value, self.translation.job)):
            return
        shown = HIDDEN if self.command.flag_set.flags[name].secret else self.get(name)
        shown = list(shown) if isinstance(shown, tuple) else shown
        self.translation.add(Item(self.spelling(name), shown, status, ours, value, why, explicit=explicit))

    def finish(self) -> Translation:
        """Add items for repeated, unparsed and unhandled flags, so that none is lost."""
        for name, flag_value in self.command.repeated:
            shown = HIDDEN if self.command.flag_set.flags[name].secret else flag_value.value
            last = self.command.values[name]
            if last.value == flag_value.value or last.spelling == flag_value.spelling:
                self.translation.add(Item(flag_value.spelling, shown, INERT, why=REPEATED))
            else:
                why = f"{last.spelling} is the same setting with another value: remove one of them"
                self.translation.add(Item(flag_value.spelling, shown, REFUSED, why=why))
        for unparsed in self.command.unparsed:
            self.translation.add(Item(unparsed.spelling, unparsed.value, REFUSED, why=unparsed.why))
        for name in self.command.values:
            if name not in self.handled:
                depends = self.translation.count(REFUSED) > 0
                why = "not translated, because another flag is refused" if depends else _UNSUPPORTED
                self.refuse(name, why)
        return self.translation


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second
