"""Ran: how one run of a program ended, wherever it ran."""

from __future__ import annotations

from dataclasses import dataclass

TIME, MEMORY, OUTPUT, PROCESSES = "time", "memory", "output", "processes"


@dataclass(frozen=True)
class Ran:
    """`status` as subprocess has it; `killed` names the limit that ended it; `problem` says that the sandbox failed."""

    stdout: str = ""
    stderr: str = ""
    status: int | None = None
    seconds: float = 0.0
    killed: str | None = None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Did it end by itself, without an error?"""
        return self.status == 0 and self.killed is None and self.problem is None
