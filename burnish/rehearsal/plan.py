"""Plan: the settings of a rehearsal, and a record of every change to the user's command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config import Loaded, load
from burnish.config.tree import tree
from burnish.errors import UserError, UserErrors

# Where a finding comes from.
READING, ARITHMETIC, DATA, REWARD, RUN = "reading", "rules", "data", "reward", "run"


Progress = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """A problem. `breaks` says whether the real run would fail too."""

    where: str
    text: str
    breaks: bool = True


@dataclass
class Plan:
    """The config that the user gave, and the settings that the rehearsal runs with."""

    job: str
    cfg: Any  # the user's
    settings: dict[str, Any]  # the rehearsal's
    folder: Path
    user_names: dict[str, str] = field(default_factory=dict)  # our key -> the name that the user typed
    live: bool = False  # call remote reward services
    trust: bool = False  # run the code of the model's folder, and Python files without isolation
    findings: list[Finding] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    synthetic_rows: bool = False
    sees: bool = False  # the trained model takes images
    progress: Progress = lambda text: None  # called with what happens next

    def value(self, key: str) -> Any:
        """The user's value of one of our keys, defaults included."""
        return value_of(self.cfg, key, self.job)

    def has(self, key: str) -> bool:
        """Whether this job has the key."""
        return key in tree(self.job).leaves

    def put(self, key: str, value: Any) -> None:
        """Set a key, if this job has it."""
        if self.has(key):
            self.drop(key)
            self.settings[key] = value

    def drop(self, key: str) -> None:
        """Reset a key, or all keys of a section, to the default."""
        for name in [name for name in self.settings if name == key or name.startswith(f"{key}.")]:
            del self.settings[name]

    def user_name(self, key: str) -> str:
        return self.user_names.get(key, key)

    def add_finding(self, where: str, problem: str | BaseException, breaks: bool = True) -> None:
        """Record a finding under the user's names of keys, unless it is already recorded."""
        errors = problem.errors if isinstance(problem, UserErrors) else [problem]
        for error in errors:
            text = error.text() if isinstance(error, UserError) else str(error)
            finding = Finding(where, in_user_names(text, self.user_names), breaks)
            if all(finding.text != known.text for known in self.findings):
                self.findings.append(finding)

    def load(self) -> Loaded:
        return load(values=self.settings, job=self.job)


def value_of(cfg: Any, key: str, job: str) -> Any:
    match = tree(job).find(key)
    if match is None:
        raise KeyError(key)
    leaf, rest = match
    node = cfg
    for name in leaf.path.split("."):
        node = getattr(node, name)
    for name in rest.split(".") if rest else ():
        node = node[name]
    return node


def in_user_names(text: str, user_names: Mapping[str, str]) -> str:
    """Replace our keys in a message by the names that the user typed."""
    for ours, theirs in sorted(user_names.items(), key=lambda pair: -len(pair[0])):
        if theirs == ours:
            continue
        pattern = rf"(?<![\w.]){re.escape(ours)}(?!\w|\.\w)"
        if theirs.startswith("-"):  # a flag and its value are separated by a space
            text = re.sub(f"{pattern}=", lambda match, flag=theirs: f"{flag} ", text)
        text = re.sub(pattern, lambda match, name=theirs: name, text)
    return text
