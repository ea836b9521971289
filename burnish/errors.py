"""UserError: what went wrong, in the words of the person who typed it. WorkerDied: what nobody typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: the key, the value, what is allowed, what to type.

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
        """One paragraph: key=value: problem. Allowed: ... Type: ..."""
        where = (
            "" if self.key is None else f"{self.key}={self.value!r}: " if self.value is not None else f"{self.key}: "
        )
        ends_well = self.problem.endswith((".", "?", "!"))
        parts = [where + self.problem + ("" if ends_well else ".")]
        if self.allowed is not None:
            names = self.allowed if isinstance(self.allowed, str) else ", ".join(map(str, self.allowed))
            parts.append(f"Allowed: {names}.")
        if self.hint is not None:
            parts.append(f"Type: {self.hint}")
        return " ".join(parts)

    def __reduce__(self) -> tuple:
        # Exceptions with keyword-only arguments do not survive pickling by default; ours cross processes.
        return _rebuild, (type(self), self.__dict__.copy())


class UserErrors(UserError):
    """Several broken rules, told together, so that one run shows them all."""

    def __init__(self, errors: list[UserError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} problems")

    def text(self) -> str:
        return "\n".join(f"{number}. {error.text()}" for number, error in enumerate(self.errors, 1))


class WorkerDied(RuntimeError):
    """A process of the run is gone, or cannot go on. What it held is lost; a checkpoint is not."""

    def __init__(self, who: str, why: str) -> None:
        self.who = who
        self.why = why
        super().__init__(f"{who} {why}")

    def __reduce__(self) -> tuple:
        return type(self), (self.who, self.why)


class StopNow(KeyboardInterrupt):
    """A second signal: end at once, with the exit status that shells give for it."""

    def __init__(self, signum: int) -> None:
        self.status = 128 + signum
        super().__init__(signum)


def raise_all(errors: list[UserError]) -> None:
    """Raise nothing, the one error, or all of them as one."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserErrors(errors)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, if any is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _rebuild(cls: type[UserError], state: dict) -> UserError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, error.text())
    return error
