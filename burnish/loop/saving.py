"""Saving: checkpoints written while training goes on. A slow disk delays no step, and a full one loses none."""

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
    needed: bool


class Saving:
    """Who writes, and how it went. `failure` is what the disk said to the last attempt; a success clears it."""

    def __init__(self) -> None:
        self.failure: SaveFailed | None = None
        self.failures = 0
        self._news: SaveFailed | None = None
        self.sealed: int | None = None  # the newest step that is written
        self._lock = threading.Lock()
        self._waiting: list[_Job] = []
        self._held: _Job | None = None  # needed, refused by the disk, to be tried again with the next
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None  # anything that is not the disk's fault

    def now(self, step: int, write: Callable[[], None], *, needed: bool = False) -> None:
        """Write, and go on when it is written or the disk has refused."""
        self.wait()
        for job in self._line([], _Job(step, write, needed)):
            self._write(job)

    def start(self, step: int, write: Callable[[], None], *, needed: bool = False) -> list[int]:
        """Write beside what follows, and go on at once.

        Where the disk is slower than the run, only the newest checkpoint waits for it, and the newest that is `needed`.
        The steps of those that are given up are returned.
        """
        self._raise_error()
        with self._lock:
            before, self._waiting = self._waiting, self._line(self._waiting, _Job(step, write, needed))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="burnish-save")
                self._thread.start()
            return [job.step for job in before if job not in self._waiting]

    def hold(self, step: int, write: Callable[[], None]) -> None:
        """This one is needed and was refused: it comes before the next, with the state that it has."""
        self._held = _Job(step, write, needed=True)

    def _line(self, waiting: list[_Job], job: _Job) -> list[_Job]:
        """Who is written, in order: one that is needed replaces all before it."""
        held, self._held = self._held, None
        needed = [one for one in (held, *waiting) if one is not None and one.needed]
        return [job] if job.needed else [*needed[-1:], job]

    def wait(self) -> None:
        """Until all is written."""
        while (thread := self._thread) is not None:
            thread.join()
        self._raise_error()

    def finish(self) -> None:
        """Until all is written. One that is needed and was refused is tried a last time: no next one takes it along."""
        self.wait()
        held, self._held = self._held, None
        if held is not None:
            self._write(held)

    def tell(self, note: Callable[[str], None]) -> None:
        """A failure that was not told yet."""
        news, self._news = self._news, None
        if news is not None:
            note(f"{news} The run goes on, and tries again after every step.")

    def close(self) -> None:
        """Let it end. The run is over, perhaps by another error: this one is only told."""
        while (thread := self._thread) is not None:
            thread.join()
        if self._error is not None:
            logging.getLogger("burnish").error("a checkpoint could not be written: %s", self._error)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                job = self._waiting.pop(0)
            try:
                self._write(job)
            except BaseException as error:  # told by the next start or wait
                self._error = error

    def _write(self, job: _Job) -> None:
        try:
            job.write()
        except SaveFailed as error:
            self.failure = self._news = error
            self.failures += 1
            if job.needed:
                self._held = job
        else:
            self.failure, self.sealed = self.failure if self._held else None, max(job.step, self.sealed or 0)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError("a checkpoint could not be written in the background") from error
