"""A Runner runs programs, on this machine or by a service; `choose_runner` picks one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from burnish.reward.sandbox.ran import Ran
from burnish.reward.sandbox.settings import SandboxSettings

Run = Callable[[str], Ran]  # stdin -> how it went


class Runner(Protocol):
    """Thread-safe. When `abandon` is set, runs come back soon."""

    def check(self) -> str:
        """A sentence on how programs are run here; UserError if they cannot be."""

    def prepared(self, code: str, language: str) -> AbstractContextManager[Run]:
        """The program, ready to run any number of times until the block ends."""


def choose_runner(settings: SandboxSettings, abandon: threading.Event | None = None) -> Runner:
    """A service if an address is given, else processes of ours."""
    abandon = abandon or threading.Event()
    if settings.url is not None:
        from burnish.reward.sandbox.fusion import Service

        return Service(settings, abandon)
    from burnish.reward.sandbox.local import Machine

    return Machine(settings, abandon)
