"""Plan: what is rehearsed. Our keys with their values, and a line about everything that was changed on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config import Loaded, load
from burnish.config.tree import tree
from burnish.errors import UserError, UserErrors

# Where a finding was made.
READING, ARITHMETIC, DATA, REWARD, RUN = "reading", "rules", "data", "reward", "run"


@dataclass(frozen=True)
class Finding:
    """Something wrong. `breaks` says whether it would stop or spoil the real run too."""

    where: str
    text: str
    breaks: bool = True


@dataclass
class Plan:
    """`asked` is the config as the user meant it; `settings` are the keys that the stand-in runs with."""

    job: str
    asked: Any
    settings: dict[str, Any]
    folder: Path
    words: dict[str, str] = field(default_factory=dict)  # our key -> what the user wrote
    live: bool = False  # may remote reward services be asked?
    findings: list[Finding] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    made_rows: bool = False  # the rows are not the user's

    def value(self, key: str) -> Any:
        """What the user asked for under a key of ours, defaults included."""
        return value_of(self.asked, key, self.job)

    def has(self, key: str) -> bool:
        """Does this job know the key?"""
        return key in tree(self.job).leaves

    def put(self, key: str, value: Any) -> None:
        if self.has(key):
            self.drop(key)
            self.settings[key] = value

    def drop(self, key: str) -> None:
        """Back to the default; of a mapping, all that is inside it."""
        for name in [name for name in self.settings if name == key or name.startswith(f"{key}.")]:
            del self.settings[name]

    def their_word(self, key: str) -> str:
        return self.words.get(key, key)

    def find(self, where: str, problem: str | BaseException, breaks: bool = True) -> None:
        """Take a finding up, in the user's words; the same one only once."""
        errors = problem.errors if isinstance(problem, UserErrors) else [problem]
        for error in errors:
            text = error.text() if isinstance(error, UserError) else str(error)
            finding = Finding(where, in_words(text, self.words), breaks)
            if all(finding.text != known.text for known in self.findings):
                self.findings.append(finding)

    def load(self) -> Loaded:
        return load(values=self.settings, job=self.job)


def value_of(cfg: Any, key: str, job: str) -> Any:
    found = tree(job).find(key)
    if found is None:
        raise KeyError(key)
    leaf, rest = found
    node = cfg
    for name in leaf.path.split("."):
        node = getattr(node, name)
    for name in rest.split(".") if rest else ():
        node = node[name]
    return node


def in_words(text: str, words: Mapping[str, str]) -> str:
    """A message about our keys in the names that the user typed."""
    for ours, theirs in sorted(words.items(), key=lambda pair: -len(pair[0])):
        if theirs == ours:
            continue
        whole = rf"(?<![\w.]){re.escape(ours)}(?!\w|\.\w)"
        if theirs.startswith("-"):  # a flag and its value stand apart
            text = re.sub(f"{whole}=", lambda found, flag=theirs: f"{flag} ", text)
        text = re.sub(whole, lambda found, name=theirs: name, text)
    return text
