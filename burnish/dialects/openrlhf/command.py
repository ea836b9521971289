"""Command: a command line of OpenRLHF, read as its parser reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.dialects.openrlhf.flags import Flag
from burnish.errors import nearest

_SECRET = re.compile(r"wandb|token|api_?key|secret|password", re.IGNORECASE)  # an unknown flag may hold one, too
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$|-\d+\.?\d*[eE][-+]?\d+$")


@dataclass(frozen=True)
class Vocabulary:
    """The flags of one program: those of its version, then other names, asked in that order."""

    flags: Mapping[str, Flag]  # the flags by their name here
    names: Sequence[Mapping[str, str]]  # spelling -> name, one mapping for each version
    dotted_defaults: Mapping[str, Any] = field(default_factory=dict)
    same_as: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    @property
    def dotted(self) -> dict[str, str]:
        """Name -> its dotted spelling."""
        return {name: spelling for names in self.names for spelling, name in names.items() if "." in spelling}


@dataclass(frozen=True)
class Typed:
    """What was typed for one flag."""

    spelling: str  # with its dashes, as typed
    value: Any


@dataclass(frozen=True)
class Misread:
    """What could not be read, and why."""

    typed: str
    value: Any
    why: str


@dataclass
class Command:
    """The flags that were given; `get` fills the others in with the defaults of the version that was meant."""

    vocabulary: Vocabulary
    given: dict[str, Typed] = field(default_factory=dict)
    repeated: list[tuple[str, Typed]] = field(default_factory=list)  # typed again later, which counts
    misread: list[Misread] = field(default_factory=list)
    is_dotted: bool = False

    def get(self, name: str) -> Any:
        if name in self.given:
            return self.given[name].value
        if self.is_dotted and name in self.vocabulary.dotted_defaults:
            return self.vocabulary.dotted_defaults[name]
        return self.vocabulary.flags[name].default

    def spelled(self, name: str) -> str:
        """The flag as the user wrote it, or would in the same version."""
        if name in self.given:
            return self.given[name].spelling
        dotted = self.vocabulary.dotted.get(name) if self.is_dotted else None
        return f"--{dotted or name}"


def read(argv: Sequence[str], vocabulary: Vocabulary) -> Command:
    """Read arguments by argparse's rules: unique prefixes, --flag=value, several values, negative numbers."""
    command = Command(vocabulary)
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            command.misread.append(Misread(word, None, f"belongs to no flag{_after_switch(command)}"))
            continue
        spelling, equals, text = word.partition("=")
        found = find(spelling.lstrip("-"), vocabulary)
        if isinstance(found, str):
            _take(command, found, spelling, _values(vocabulary.flags[found], [text] if equals else None, rest))
            continue
        values = [text] if equals else []
        while not equals and rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        shown = "***" if values and _SECRET.search(spelling) else " ".join(values) or None
        command.misread.append(Misread(spelling, shown, found.why))
    command.is_dotted = any("." in typed.spelling for typed in command.given.values())
    return command


def find(spelling: str, vocabulary: Vocabulary) -> str | Misread:
    """The flag of a spelling or of an unambiguous beginning of one, version by version."""
    for names in vocabulary.names:
        if spelling in names:
            return names[spelling]
    for names in vocabulary.names:
        fitting = [one for one in names if one.startswith(spelling)]
        if len(fitting) == 1:
            return names[fitting[0]]
        if fitting:
            candidates = ", ".join(f"--{one}" for one in sorted(fitting))
            return Misread(spelling, None, f"is short for several flags: write one of {candidates}")
    meant = nearest(spelling.replace("-", "_"), [one for names in vocabulary.names for one in names])
    return Misread(spelling, None, "no such flag" + (f": did you mean --{meant}?" if meant else ""))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word) and " " not in word.split("=")[0]


def _values(flag: Flag, inline: list[str] | None, rest: list[str]) -> list[str] | str:
    """The words that belong to a flag, or why they do not fit."""
    if flag.nargs == 0:
        return f"is a switch: it takes no value, not {inline[0]!r}" if inline else []
    words = list(inline or [])
    wanted = flag.nargs if isinstance(flag.nargs, int) else None
    while inline is None and rest and not _is_flag(rest[0]) and (wanted is None or len(words) < wanted):
        words.append(rest.pop(0))
    if wanted is not None and len(words) != wanted:
        return f"needs {wanted} value{'s' if wanted > 1 else ''}, and has {len(words)}"
    return words


def _take(command: Command, name: str, spelling: str, words: list[str] | str) -> None:
    flag = command.vocabulary.flags[name]
    if isinstance(words, str):
        command.misread.append(Misread(spelling, None, words))
        return
    try:
        value = True if flag.nargs == 0 else _read_values(flag, words)
    except ValueError as error:
        shown = "***" if flag.secret else " ".join(words)
        command.misread.append(Misread(spelling, shown, str(error)))
        return
    target, fixed = command.vocabulary.same_as.get(name, (name, None))
    typed = Typed(spelling, value if fixed is None else fixed)
    if target in command.given:
        command.repeated.append((target, command.given[target]))
    command.given[target] = typed


def _read_values(flag: Flag, words: list[str]) -> Any:
    values = [_read_one(flag, word) for word in words]
    return values if flag.nargs != 1 else values[0]


def _read_one(flag: Flag, word: str) -> Any:
    try:
        value = flag.kind(word)
    except ValueError:
        raise ValueError(f"must be {'a whole number' if flag.kind is int else 'a number'}") from None
    if flag.choices and value not in flag.choices:
        meant = nearest(word, flag.choices)
        hint = f" Did you mean {meant}?" if meant else ""
        raise ValueError(f"must be one of {', '.join(flag.choices)}.{hint}")
    return value


def _after_switch(command: Command) -> str:
    """`--use_kl_loss True` is a common mistake."""
    if not command.given:
        return ""
    name, typed = list(command.given.items())[-1]
    flag = command.vocabulary.flags[name]
    return f"; {typed.spelling} is a switch and takes no value" if flag.nargs == 0 else ""
