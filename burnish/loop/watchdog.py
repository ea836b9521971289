"""Watchdog: detects a hang, dumps all stacks and stops the run."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from burnish.escape import printable
from burnish.log.clock import Clock

HUNG = 124  # the exit status, as `timeout` has it
LONGEST_TICK = 1.0

# (phase, seconds) -> stacks of the workers, which it kills
KillWorkers = Callable[[str, float], str]


class Watchdog:
    """Stops this process, or kills the workers it waits for, when no phase has begun or ended for `timeout` seconds.

    It counts its own ticks instead of wall-clock time: a stopped process or a sleeping laptop is not a hang. `end` is
    called with the exit status.
    """

    def __init__(
        self,
        clock: Clock,
        timeout: float,
        folder: Path,
        *,
        rank: int = 0,
        end: Callable[[int], object] = os._exit,
        kill_workers: KillWorkers | None = None,
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.file = folder / f"hang_rank_{rank}.txt"
        self.rank = rank
        self.end = end
        self.kill_workers = kill_workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="burnish-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        tick = min(LONGEST_TICK, self.timeout / 10)
        beats, still = self.clock.num_transitions, 0.0
        while not self._over.wait(tick):
            if self.clock.num_transitions != beats:
                beats, still = self.clock.num_transitions, 0.0
                continue
            still += tick
            if still < self.timeout:
                continue
            if self.kill_workers is None:
                self._report()
                self.end(HUNG)
                return
            self._kill_workers(self.kill_workers)
            still = 0.0

    def _kill_workers(self, kill_workers: KillWorkers) -> None:
        """Kill the workers. The call that waits for them then fails, and the run restarts."""
        phase = self.clock.active_phases() or "no phase"
        os.write(2, f"\nthe run hangs in {phase}: no phase has begun or ended for {self.timeout:g} s.\n".encode())
        stacks = printable(kill_workers(phase, self.timeout))
        os.write(2, f"{stacks}\n".encode())
        with suppress(OSError):
            self.file.write_text(f"{datetime.now(UTC).isoformat(timespec='seconds')} {phase}\n{stacks}\n")

    def _report(self) -> None:
        """Write to the file descriptor: the hung thread may hold the console's lock."""
        phase = self.clock.active_phases() or "no phase"
        text = (
            f"rank {self.rank} hangs in {phase}: no phase has begun or ended for {self.timeout:g} s"
            " (trainer.hang_timeout).\n"
        )
        os.write(2, f"\n{text}".encode())
        faulthandler.dump_traceback(file=2, all_threads=True)
        with suppress(OSError):  # the disk may be the cause; standard error has everything
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
            hint = f"The stacks are also in {self.file}. Run the same command to resume from the last checkpoint.\n"
            os.write(2, printable(hint).encode())


@contextmanager
def watching(
    clock: Clock, timeout: float, folder: Path, *, rank: int = 0, kill_workers: KillWorkers | None = None
) -> Iterator[None]:
    """Run a watchdog inside; a timeout of 0 disables it."""
    if timeout <= 0:
        yield
        return
    watchdog = Watchdog(clock, timeout, folder, rank=rank, kill_workers=kill_workers)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
