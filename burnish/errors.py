"""UserError: an error that the user can fix. WorkerDied: a process of the run ended unexpectedly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


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
        """The message: `key=value: problem. Allowed: ... Type: ...`"""
        if self.key is None:
            prefix = ""
        elif self.value is None:
            prefix = f"{self.key}: "
        else:
            prefix = f"{self.key}={self.value!r}: "
        period = "" if self.problem.endswith((".", "?", "!")) else "."
        parts = [f"{prefix}{self.problem}{period}"]
        if self.allowed is not None:
            names = self.allowed if isinstance(self.allowed, str) else ", ".join(map(str, self.allowed))
            parts.append(f"Allowed: {names}.")
        if self.hint is not None:
            parts.append(f"Type: {self.hint}")
        return " ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes, and pickle cannot rebuild exceptions with keyword-only arguments by itself.
        return _rebuild, (type(self), self.__dict__.copy())


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


def _rebuild(cls: type[UserError], state: dict[str, Any]) -> UserError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, error.text())
    return error
