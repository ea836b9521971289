"""Parser for OpenRLHF command lines that follows argparse's rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.dialects.openrlhf.flags import Flag
from burnish.errors import nearest
from burnish.redact import HIDDEN, is_secret, remember

# What other trainers call a flag, or a value of one.
SYNONYMS = {
    "model_name_or_path": "pretrain",
    "num_train_epochs": "num_episodes",
    "num_generations": "n_samples_per_prompt",
    "reward_fn": "remote_rm_url",
    "output_dir": "save_path",
    "grpo": "group_norm",
    "ppo": "gae",
    "reinforce++": "reinforce",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "low_var_kl": "k3",
    "mse": "k2",
}
_SIMILAR = 0.75  # the ratio of difflib from which a flag is probably the one that was meant
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$|-\d+\.?\d*[eE][-+]?\d+$")


@dataclass(frozen=True)
class FlagSet:
    """The flags of one program, with spellings of several versions."""

    flags: Mapping[str, Flag]  # by v0.9.2 name
    names: Sequence[Mapping[str, str]]  # spelling -> name; one mapping per version, searched in this order
    dotted_defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    @property
    def dotted(self) -> dict[str, str]:
        """Name -> dotted spelling."""
        return {name: spelling for names in self.names for spelling, name in names.items() if "." in spelling}


@dataclass(frozen=True)
class FlagValue:
    """The value of one flag, and the flag's spelling on the command line."""

    spelling: str  # with its dashes
    value: Any


@dataclass(frozen=True)
class UnparsedFlag:
    """A word or flag that could not be parsed, and why."""

    spelling: str
    value: Any
    why: str


@dataclass
class Command:
    """The flags that the user wrote; `get` adds the defaults of the command's OpenRLHF version."""

    flag_set: FlagSet
    values: dict[str, FlagValue] = field(default_factory=dict)
    repeated: list[tuple[str, FlagValue]] = field(default_factory=list)  # overridden by a later occurrence
    unparsed: list[UnparsedFlag] = field(default_factory=list)
    is_dotted: bool = False

    def get(self, name: str) -> Any:
        if name in self.values:
            return self.values[name].value
        if self.is_dotted and name in self.flag_set.dotted_defaults:
            return self.flag_set.dotted_defaults[name]
        return self.flag_set.flags[name].default

    def spelling(self, name: str) -> str:
        """The flag as the user wrote it, or as the same version spells it."""
        if name in self.values:
            return self.values[name].spelling
        dotted = self.flag_set.dotted.get(name) if self.is_dotted else None
        return f"--{dotted or name}"


def parse(argv: Sequence[str], flag_set: FlagSet) -> Command:
    """Parse arguments as argparse does: unique prefixes, --flag=value, several values, negative numbers."""
    command = Command(flag_set)
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            command.unparsed.append(UnparsedFlag(word, None, f"does not belong to a flag{_switch_hint(command)}"))
            continue
        spelling, equals, text = word.partition("=")
        match = find_flag(spelling.lstrip("-"), flag_set)
        if isinstance(match, str):
            words = _take_words(flag_set.flags[match], [text] if equals else None, rest)
            _store(command, match, spelling, words)
            continue
        values = [text] if equals else []
        while not equals and rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        # It may be a misspelled --use_wandb, whose value is a key.
        hidden = any(is_secret(spelling, value) or "wandb" in spelling for value in values)
        shown = HIDDEN if hidden else " ".join(values) or None
        command.unparsed.append(UnparsedFlag(spelling, shown, match.why))
    command.is_dotted = any("." in flag_value.spelling for flag_value in command.values.values())
    return command


def find_flag(spelling: str, flag_set: FlagSet) -> str | UnparsedFlag:
    """The name of the flag with this spelling or unique prefix, searched version by version."""
    for names in flag_set.names:
        if spelling in names:
            return names[spelling]
    for names in flag_set.names:
        matches = [name for name in names if name.startswith(spelling)]
        if len(matches) == 1:
            return names[matches[0]]
        if matches:
            candidates = ", ".join(f"--{name}" for name in sorted(matches))
            return UnparsedFlag(spelling, None, f"ambiguous prefix: write one of {candidates}")
    suggestion = _nearest_flag(spelling.replace("-", "_"), flag_set)
    hint = f"did you mean --{suggestion}?" if suggestion else "leave it out, to run without it"
    return UnparsedFlag(spelling, None, f"unknown flag: {hint}")


def _nearest_flag(spelling: str, flag_set: FlagSet) -> str | None:
    """The flag that was probably meant, spelled for the version whose flags look like this one."""
    spellings = [name for names in flag_set.names for name in names]
    synonym = spelling.replace("lr", "learning_rate") if spelling.endswith("lr") else SYNONYMS.get(spelling, "")
    if synonym in spellings:
        return synonym
    alike = [name for name in spellings if ("." in name) == ("." in spelling)]
    matches = (difflib.get_close_matches(spelling, names, n=1, cutoff=_SIMILAR) for names in (alike, spellings))
    return next((found[0] for found in matches if found), None)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word) and " " not in word.split("=")[0]


def _take_words(flag: Flag, inline: list[str] | None, rest: list[str]) -> list[str] | str:
    """The words that belong to a flag, or an error message if their number is wrong."""
    if flag.nargs == 0:
        return f"is a switch and takes no value, got {inline[0]!r}" if inline else []
    words = list(inline or [])
    expected = flag.nargs if isinstance(flag.nargs, int) else None
    while inline is None and rest and not _is_flag(rest[0]) and (expected is None or len(words) < expected):
        words.append(rest.pop(0))
    if expected is not None and len(words) != expected:
        empty = "" if words else " (maybe a shell variable is not set)"
        return f"takes {expected} value{'s' if expected > 1 else ''}, got {len(words)}{empty}"
    return words


def _store(command: Command, name: str, spelling: str, words: list[str] | str) -> None:
    flag = command.flag_set.flags[name]
    if flag.secret:
        for word in words:
            remember(word)
    if isinstance(words, str):
        command.unparsed.append(UnparsedFlag(spelling, None, words))
        return
    try:
        value = True if flag.nargs == 0 else _parse_values(flag, words)
    except ValueError as error:
        shown = HIDDEN if flag.secret else " ".join(words)
        command.unparsed.append(UnparsedFlag(spelling, shown, str(error)))
        return
    target, fixed = command.flag_set.aliases.get(name, (name, None))
    flag_value = FlagValue(spelling, value if fixed is None else fixed)
    if target in command.values:
        command.repeated.append((target, command.values[target]))
    command.values[target] = flag_value


def _parse_values(flag: Flag, words: list[str]) -> Any:
    values = [_parse_value(flag, word) for word in words]
    return values if flag.nargs != 1 else values[0]


def _parse_value(flag: Flag, word: str) -> Any:
    try:
        value = flag.kind(word)
    except ValueError:
        raise ValueError(f"must be {'an integer' if flag.kind is int else 'a number'}") from None
    if flag.choices and value not in flag.choices:
        synonym = SYNONYMS.get(word)
        suggestion = synonym if synonym in flag.choices else nearest(word, flag.choices)
        hint = f" Did you mean {suggestion}?" if suggestion else ""
        raise ValueError(f"must be one of {', '.join(flag.choices)}.{hint}")
    return value


def _switch_hint(command: Command) -> str:
    """A hint for `--use_kl_loss True`, a common mistake."""
    if not command.values:
        return ""
    name, flag_value = list(command.values.items())[-1]
    flag = command.flag_set.flags[name]
    return f"; {flag_value.spelling} is a switch and takes no value" if flag.nargs == 0 else ""
