"""Runner: runs programs on this machine or with a service; `choose_runner` selects one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.settings import SandboxSettings

RunFn = Callable[[str], RunResult]  # takes stdin


class Runner(Protocol):
    """Thread-safe. When the cancel event is set, running programs are stopped."""

    def check(self) -> str:
        """Describe how programs are run, for the log; UserError if they cannot be."""
        ...

    def prepare(self, code: str, language: str) -> AbstractContextManager[RunFn]:
        """Compile the program; it can then be run any number of times inside the `with` block."""
        ...


def choose_runner(settings: SandboxSettings, cancel_event: threading.Event | None = None) -> Runner:
    """A service if `url` is set, else this machine."""
    cancel_event = cancel_event or threading.Event()
    if settings.url is not None:
        from burnish.reward.sandbox.fusion import FusionRunner

        return FusionRunner(settings, cancel_event)
    from burnish.reward.sandbox.local import LocalRunner

    return LocalRunner(settings, cancel_event)
