"""Stop: Ctrl-C, or the SIGTERM of a scheduler, ends a run well."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from burnish.errors import StopNow

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stop:
    """Has somebody asked for an end? `signum` says with which signal."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def is_set(self) -> bool:
        return self.signum is not None


@contextmanager
def stop_request() -> Iterator[Stop]:
    """A signal asks for a stop after the running step; a second one stops at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(signum: int, frame: object) -> None:
        if stop.is_set():
            raise StopNow(signum)
        stop.signum = signum
        # A signal may come while the console holds its lock; a plain write needs none.
        said = f"\n{SIGNALS[signal.Signals(signum)]}: finishing this step, then saving. Once more stops at once.\n"
        os.write(2, said.encode())

    before = {signum: signal.signal(signum, ask) for signum in SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
