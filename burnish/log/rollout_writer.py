"""Trajectories of training steps as JSON lines, written by a thread: {folder}/{step}.jsonl."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.log.folder import dump_rollouts
from burnish.storage import disk_full

MAX_WAITING = 8  # steps that wait for a slow disk; then the training thread waits too, because texts are not skipped
MAX_REFUSED = 20  # steps that are kept in memory while the disk refuses them

Rows = Sequence[Mapping[str, Any]]


class RolloutWriter:
    """Writes the steps in order. What the disk refuses is tried again with the next step."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder
        self._waiting: queue.Queue[tuple[int, Callable[[], Rows]] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._refused: dict[int, Rows] = {}  # by step
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()

    def record(self, step: int, make_rows: Callable[[], Rows]) -> None:
        """Queue a step. The thread calls `make_rows`: what it reads must not change any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="burnish-texts", daemon=True)
            self._thread.start()
        self._waiting.put((step, make_rows))

    def take_problems(self) -> list[str]:
        """What went wrong since the last call."""
        return [self._problems.get() for _ in range(self._problems.qsize())]

    def wait(self) -> None:
        """Wait until everything that was queued is written or refused."""
        self._waiting.join()

    def close(self) -> None:
        """The same, and end the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                self._write(*job)
            except Exception as error:  # a record that is no JSON, for example: no reason to lose the run
                self._problems.put(f"cannot write the trajectories of step {job[0]}: {type(error).__name__}: {error}")
            finally:
                self._waiting.task_done()

    def _write(self, step: int, make_rows: Callable[[], Rows]) -> None:
        self._refused[step] = make_rows()
        try:
            for waiting in list(self._refused):
                dump_rollouts(self.folder, waiting, self._refused[waiting])
                del self._refused[waiting]
        except OSError as error:
            problem = f"cannot write the trajectories of step {step} to {self.folder} yet"
            self._problems.put(f"{disk_full(error)}{problem}: {error}")
        except Exception:
            del self._refused[step]
            raise
        while len(self._refused) > MAX_REFUSED:
            oldest = min(self._refused)
            del self._refused[oldest]
            self._problems.put(f"gave up writing the trajectories of step {oldest}")
