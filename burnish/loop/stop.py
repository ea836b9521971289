"""Clean stop on Ctrl-C, or on the SIGTERM of a cluster scheduler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from burnish.errors import StopNow

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stop:
    """Whether a signal asked the run to stop, and which."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def is_set(self) -> bool:
        return self.signum is not None


@contextmanager
def stop_request() -> Iterator[Stop]:
    """The first signal stops the run after the current step, a second one at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(signum: int, frame: object) -> None:
        if stop.is_set():
            raise StopNow(signum)
        stop.signum = signum
        # A signal may come while the console holds its lock; a plain write needs none.
        name = SIGNALS[signal.Signals(signum)]
        os.write(2, f"\n{name} received: finishing this step, then saving. Send again to exit immediately.\n".encode())

    before = {signum: signal.signal(signum, handle) for signum in SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
