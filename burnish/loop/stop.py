"""Clean stop on Ctrl-C, or on the SIGTERM of a cluster scheduler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.errors import StopNow
from burnish.log.console import announce
from burnish.training.checkpoint import Checkpoints

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stop:
    """Whether a signal asked the run to stop, and which."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def is_set(self) -> bool:
        return self.signum is not None


@contextmanager
def naming_last_checkpoint(run_folder: str | Path) -> Iterator[None]:
    """Add to an interruption what of the run is saved, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        checkpoints = Checkpoints(Path(run_folder).expanduser().absolute())
        steps = checkpoints.own_steps()
        if steps:
            last = f"the last checkpoint is {checkpoints.path(steps[-1])}; run the same command to resume"
        else:
            last = "no checkpoint was saved yet; the same command starts anew"
        if not hasattr(interrupt, "__notes__"):
            interrupt.add_note(f"interrupted; {last}")
        raise


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
        name = SIGNALS[signal.Signals(signum)]
        announce(f"{name} received: finishing this step, then saving.\nSend again to exit immediately.")

    before = {signum: signal.signal(signum, handle) for signum in SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
