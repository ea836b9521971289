"""UserError: an error that the user can fix, and what to type for it. WorkerDied: a process of the run ended."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any

from burnish.redact import HIDDEN, is_secret, redact_text

CLONE = Path(__file__).resolve().parents[1]  # if Burnish runs from a clone, as editable installs do


class ExitStatus(IntEnum):
    """Exit statuses of every `burnish` command (docs/run.md)."""

    OK = 0
    ERROR = 1  # a user error, a failed run, or a check that found a mistake
    USAGE = 2  # invalid arguments, or a command that cannot be translated
    REFUSED = 3  # a setting that is wrong or impossible, or a run that does not fit in memory
    UNSUPPORTED = 4  # a setting that is understood but not supported yet
    HUNG = 124  # as `timeout` has it
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of the output has closed it, as shells report SIGPIPE
    TERMINATED = 143  # SIGTERM


class UserError(Exception):
    """An error that the user can fix: the problem, the key, its value, what is allowed, and what to type.

    >>> raise UserError("no such advantage estimator", key="algorithm.adv_estimator", value="gpro",
    ...                 allowed=["gae", "grpo"], hint="algorithm.adv_estimator=grpo")
    """

    def __init__(
        self,
        problem: str,
        *,
        key: str | None = None,
        value: object = None,
        allowed: Iterable[object] | str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.key = key
        self.value = value
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else list(allowed)
        self.hint = hint
        super().__init__(self.text())

    def text(self) -> str:
        """The message, without secrets: `key=value: problem. Allowed: ... Type: ...`"""
        secret = self.key is not None and is_secret(self.key, self.value)
        if self.key is None:
            prefix = ""
        elif self.value is None:
            prefix = f"{self.key}: "
        else:
            prefix = f"{self.key}={HIDDEN if secret else redact_text(repr(self.value))}: "
        period = "" if self.problem.endswith((".", "?", "!")) else "."
        parts = [f"{self.problem}{period}"]
        if self.allowed is not None:
            names = self.allowed if isinstance(self.allowed, str) else ", ".join(map(str, self.allowed))
            parts.append(f"Allowed: {names}.")
        if self.hint is not None:
            parts.append(f"Type: {self.hint}")
        # The prefix stays out of it: a problem is not the value of a key that is named like a secret.
        text = redact_text(" ".join(parts))
        return prefix + (text.replace(str(self.value), HIDDEN) if secret and self.value else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes, and pickle cannot rebuild exceptions with keyword-only arguments by itself.
        return _rebuild, (type(self), self.__dict__.copy())


class NotSupportedYet(UserError):
    """An error about something that is understood, but that Burnish cannot do yet."""


class UserErrors(UserError):
    """Several errors, reported together."""

    def __init__(self, errors: list[UserError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} problems")

    def text(self) -> str:
        return "\n".join(f"{number}. {error.text()}" for number, error in enumerate(self.errors, 1))


class WorkerDied(RuntimeError):
    """A process of the run ended or cannot continue. Its state is lost; the run can restart from a checkpoint."""

    def __init__(self, who: str, why: str) -> None:
        self.who = who
        self.why = why
        super().__init__(f"{who} {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.who, self.why)


class StopNow(KeyboardInterrupt):
    """A second signal: exit immediately, with the status that shells use for that signal."""

    def __init__(self, signum: int) -> None:
        self.status = 128 + signum
        super().__init__(signum)


def raise_all(errors: list[UserError]) -> None:
    """Raise a single error as it is, several as UserErrors, and none if the list is empty."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserErrors(errors)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, or None if none is similar."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def install_extra(*extras: str, upgrade: bool = False) -> str:
    """The command that installs optional libraries of Burnish, from the clone if Burnish runs from one."""
    names, option = ",".join(extras), "--upgrade " if upgrade else ""
    if not (CLONE / "pyproject.toml").is_file():
        return f'{_pip_install()} {option}"burnish[{names}]"'
    folder = "" if os.path.samefile(os.curdir, CLONE) else f"cd {shlex.quote(str(CLONE))} && "
    return f'{folder}{_pip_install()} {option}-e ".[{names}]"'


def install_package(requirement: str) -> str:
    """The command that installs a library that no extra of Burnish contains."""
    return f"{_pip_install()} {requirement}"


def _pip_install() -> str:
    """`pip install` of this Python: in an environment that is not activated, `pip` is another one's."""
    pip = shutil.which("pip")
    if pip is not None and os.path.dirname(pip) == os.path.dirname(sys.executable):
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"


def _rebuild(cls: type[UserError], state: dict[str, Any]) -> UserError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, error.text())
    return error
