"""One worker process, seen from the parent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from burnish.errors import UserError
from burnish.reward.call import trimmed
from burnish.reward.channel import Channel
from burnish.reward.isolation import Borders
from burnish.reward.sample import KINDS, Outcome, Sample
from burnish.reward.worker import STARTUP_SECONDS, Ready

_ASYNC_GRACE = 2.0  # seconds in which an async function's own time limit should have fired


@dataclass(eq=False)
class Job:
    """A sample on its way. It goes `alone` after it was in a worker that died, to find out whether it was the cause.

    With `parts` it is a whole batch: one call for all of them, in the time of all of them.
    """

    sample: Sample
    payload: bytes
    future: Future[Any]
    alone: bool = False
    parts: tuple[Job, ...] = ()

    @property
    def count(self) -> int:
        return len(self.parts) or 1


class WorkerProcess:
    """A fresh Python with our pipe, no secrets, and its output in a file that outlives it.

    Not `multiprocessing.Process`: that would run the user's main script a second time in every worker, and its children
    may not have children of their own, which reward functions that run code need.
    """

    def __init__(
        self, setup: bytes, timeout: float, environment: dict[str, str], folder: str, borders: Borders | None = None
    ) -> None:
        self.timeout = timeout
        self.ready: Ready | None = None
        self.jobs: dict[int, Job] = {}  # unanswered, by index in the chunk
        self.num_sent = 0
        self._number = 0  # of the chunk
        self.sent_at = time.monotonic()
        self.limit = STARTUP_SECONDS  # seconds for what it does now
        self.deadline: float | None = self.sent_at + self.limit
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self.channel = Channel()
        theirs = self.channel.theirs
        self._own_folder = tempfile.mkdtemp(prefix="burnish-reward-")
        self._isolated = borders is not None
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", self._code(theirs.fileno(), lifeline, borders)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(), lifeline),
                env=environment | {"TMPDIR": self._own_folder},
                cwd=folder,
                start_new_session=True,  # Ctrl-C is the parent's affair, and `end` reaches the worker's children too
            )
        finally:
            os.close(lifeline)
            theirs.close()
        with contextlib.suppress(EOFError):  # already dead: the next read says so
            self.channel.send(setup)

    def _code(self, descriptor: int, lifeline: int, borders: Borders | None) -> str:
        path = [str(entry) for entry in sys.path]
        start = f"import sys; sys.path[:] = {path!r}; from burnish.reward.worker import main; "
        if borders is None:
            return f"{start} main({descriptor})"
        text = str(replace(borders, lifeline=lifeline, folder=self._own_folder))
        isolate = "from burnish.reward.isolation import run_isolated; "
        return f"{start}{isolate}run_isolated({text!r}, lambda: main({descriptor}))"

    @property
    def idle(self) -> bool:
        return self.ready is not None and not self.jobs

    def started(self, message: bytes) -> None:
        """Take the first message in; it may be a UserError."""
        first: Ready | UserError = pickle.loads(message)
        if isinstance(first, UserError):
            raise first
        self.ready, self.deadline = first, None

    def send(self, jobs: list[Job]) -> None:
        """Hand over a chunk. EOFError when the worker is gone; the jobs are then still the caller's."""
        seconds = [self.timeout * job.count for job in jobs]
        in_all = max(seconds) if self.ready.concurrent else sum(seconds)
        self._number += 1
        self.channel.send(pickle.dumps((self._number, in_all, [job.payload for job in jobs])))
        self.jobs = dict(enumerate(jobs))
        self.num_sent = len(jobs)
        self.sent_at = time.monotonic()
        self.limit = in_all if self.ready.concurrent else seconds[0]
        self.deadline = self.sent_at + self.limit + (_ASYNC_GRACE if self.ready.concurrent else 0.0)

    def answered(self, message: bytes) -> tuple[Job, Outcome]:
        """Match a reply with its job, and give the next sample its own time. EOFError if it makes no sense."""
        try:
            # JSON, not pickle: reward functions may run what a model wrote, and a pickle could run it here as well.
            number, index, *fields = json.loads(message)
            outcome = checked(Outcome(*fields))
            job = self.jobs.pop(index if number == self._number else None)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EOFError(f"a reply that makes no sense: {error}") from error
        if not self.jobs:
            self.deadline = None
        elif not self.ready.concurrent:
            self.limit = self.timeout * next(iter(self.jobs.values())).count
            self.deadline = time.monotonic() + self.limit
        return job, outcome

    def unanswered(self) -> tuple[Job | None, deque[Job]]:
        """The job that ended the worker, if it can be told, and the others."""
        others = deque(self.jobs.values())
        self.jobs = {}
        if others and (len(others) == 1 or not self.ready.concurrent):
            return others.popleft(), others
        return None, others

    def kill(self) -> None:
        """The worker and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> str:
        """Kill the worker; what it last wrote to stdout or stderr."""
        os.close(self._lifeline)
        if self._isolated:
            # Its watcher ends everything. Were it killed, nobody might wait for it, and its entry would stay for ever.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
        if not self._isolated or self._process.returncode is None:
            self.kill()
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        self._output.close()
        shutil.rmtree(self._own_folder, ignore_errors=True)
        return trimmed(text.strip())

    def how_it_ended(self) -> str:
        """Exit status or signal. Waits for a process that has closed its pipe but is not gone yet."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        status = self._process.returncode
        if status is None:
            return "closed its pipe"
        return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"


def checked(outcome: Outcome) -> Outcome:
    """The outcome, if it is one: whatever a reward function did to its worker, only scores go on. Else ValueError."""
    is_number = isinstance(outcome.value, int | float) and math.isfinite(outcome.value)
    are_texts = isinstance(outcome.text, str) and isinstance(outcome.printed, str)
    if not (is_number and are_texts and isinstance(outcome.extras, dict) and outcome.kind in KINDS):
        raise ValueError("no outcome")
    return outcome
