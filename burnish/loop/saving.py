"""Saving: writes checkpoints, in the background if asked to. A slow disk delays no step, a full one loses none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from burnish.training.checkpoint import SaveFailed


@dataclass(frozen=True)
class _Job:
    step: int
    write: Callable[[], None]
    required: bool


class Saving:
    """`failure` is the error of the last attempt; a success clears it."""

    def __init__(self) -> None:
        self.failure: SaveFailed | None = None
        self.failures = 0
        self._unreported: SaveFailed | None = None
        self.newest_step: int | None = None  # that was written
        self._lock = threading.Lock()
        self._queue: list[_Job] = []
        self._held: _Job | None = None  # required and failed: tried again before the next one
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None  # anything but a failed write

    def now(self, step: int, write: Callable[[], None], *, required: bool = False) -> None:
        """Write, and return when the checkpoint is written or the write failed."""
        self.wait()
        for job in self._merge([], _Job(step, write, required)):
            self._write(job)

    def start(self, step: int, write: Callable[[], None], *, required: bool = False) -> list[int]:
        """Write in the background.

        If the disk is slower than the run, only the newest checkpoint and the newest `required` one stay queued.
        Returns the steps of skipped checkpoints.
        """
        self._raise_error()
        with self._lock:
            before, self._queue = self._queue, self._merge(self._queue, _Job(step, write, required))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="burnish-save")
                self._thread.start()
            return [job.step for job in before if job not in self._queue]

    def hold(self, step: int, write: Callable[[], None]) -> None:
        """Keep a required checkpoint whose write failed; it is written before the next one."""
        self._held = _Job(step, write, required=True)

    def _merge(self, queue: list[_Job], job: _Job) -> list[_Job]:
        """The queue with a new job: a required one replaces all before it."""
        held, self._held = self._held, None
        required = [queued for queued in (held, *queue) if queued is not None and queued.required]
        return [job] if job.required else [*required[-1:], job]

    def wait(self) -> None:
        """Wait until everything is written."""
        while (thread := self._thread) is not None:
            thread.join()
        self._raise_error()

    def finish(self) -> None:
        """Wait until everything is written. A required checkpoint whose write failed is tried a last time."""
        self.wait()
        held, self._held = self._held, None
        if held is not None:
            self._write(held)

    def report(self, note: Callable[[str], None]) -> None:
        """Log a failure that was not logged yet."""
        failure, self._unreported = self._unreported, None
        if failure is not None:
            note(f"{failure} The run continues and tries again after every step.")

    def close(self) -> None:
        """Wait for the thread. The run may be ending with another error, so this one is only logged."""
        while (thread := self._thread) is not None:
            thread.join()
        if self._error is not None:
            logging.getLogger("burnish").error("cannot write a checkpoint: %s", self._error)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                job = self._queue.pop(0)
            try:
                self._write(job)
            except BaseException as error:  # raised by the next start or wait
                self._error = error

    def _write(self, job: _Job) -> None:
        try:
            job.write()
        except SaveFailed as error:
            self.failure = self._unreported = error
            self.failures += 1
            if job.required:
                self._held = job
        else:
            self.failure = self.failure if self._held else None
            self.newest_step = max(job.step, self.newest_step or 0)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError("cannot write a checkpoint in the background") from error
