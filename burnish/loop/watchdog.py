"""Watchdog: a run that stands still is named, its stacks are written down, and it is ended."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from burnish.log.clock import Clock

HUNG = 124  # the exit status, as `timeout` has it
LONGEST_TICK = 1.0

# (phase, seconds) -> the workers' stacks; ends them
BreakOff = Callable[[str, float], str]


class Watchdog:
    """Ends this process, or the workers that it waits for, once no phase has begun or ended for `patience` seconds.

    It counts its own ticks and not the time of day: a process that was stopped for a while, or a laptop that slept, did
    not hang. `end` gets the exit status.
    """

    def __init__(
        self,
        clock: Clock,
        patience: float,
        folder: Path,
        *,
        rank: int = 0,
        end: Callable[[int], object] = os._exit,
        break_off: BreakOff | None = None,
    ) -> None:
        self.clock = clock
        self.patience = patience
        self.file = folder / f"hang_rank_{rank}.txt"
        self.rank = rank
        self.end = end
        self.break_off = break_off
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="burnish-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        tick = min(LONGEST_TICK, self.patience / 10)
        beats, still = self.clock.beats, 0.0
        while not self._over.wait(tick):
            if self.clock.beats != beats:
                beats, still = self.clock.beats, 0.0
                continue
            still += tick
            if still < self.patience:
                continue
            if self.break_off is None:
                self._tell()
                self.end(HUNG)
                return
            self._break_off(self.break_off)
            still = 0.0

    def _break_off(self, break_off: BreakOff) -> None:
        """The workers are ended; this process hears of it where it waits for them, and the run starts again."""
        phase = self.clock.where() or "between two phases"
        os.write(2, f"\nthe run hangs in {phase}: nothing has begun or ended for {self.patience:g} s.\n".encode())
        stacks = break_off(phase, self.patience)
        os.write(2, f"{stacks}\n".encode())
        with suppress(OSError):
            self.file.write_text(f"{datetime.now(UTC).isoformat(timespec='seconds')} {phase}\n{stacks}\n")

    def _tell(self) -> None:
        """Plain writes: whoever hangs may hold the console's lock."""
        phase = self.clock.where() or "between two phases"
        text = (
            f"rank {self.rank} hangs in {phase}: nothing has begun or ended for {self.patience:g} s"
            " (trainer.hang_timeout).\n"
        )
        os.write(2, f"\n{text}".encode())
        faulthandler.dump_traceback(file=2, all_threads=True)
        with suppress(OSError):  # the disk may be what hangs or is full; standard error has it all
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
            os.write(
                2, f"The stacks are also in {self.file}. The same command goes on from the last checkpoint.\n".encode()
            )


@contextmanager
def watching(
    clock: Clock, patience: float, folder: Path, *, rank: int = 0, break_off: BreakOff | None = None
) -> Iterator[None]:
    """A watchdog for as long as this lasts; a patience of 0 is none."""
    if patience <= 0:
        yield
        return
    watchdog = Watchdog(clock, patience, folder, rank=rank, break_off=break_off)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
