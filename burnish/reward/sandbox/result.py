"""RunResult: the result of one run of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunResult:
    """`status` as in subprocess; `killed` is the limit that was exceeded; `problem` is a failure of the sandbox."""

    stdout: str = ""
    stderr: str = ""
    status: int | None = None
    seconds: float = 0.0
    killed: str | None = None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the program exited by itself with status 0."""
        return self.status == 0 and self.killed is None and self.problem is None
