"""One worker process, seen from the parent."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe

from burnish.errors import UserError
from burnish.reward.call import trimmed
from burnish.reward.sample import Outcome, Sample, Score
from burnish.reward.worker import STARTUP_SECONDS, Ready

_ASYNC_GRACE = 2.0  # seconds in which an async function's own time limit should have fired


@dataclass(eq=False)
class Job:
    """A sample on its way. It goes `alone` after it was in a worker that died, to find out whether it was the cause."""

    sample: Sample
    payload: bytes
    future: Future[Score]
    alone: bool = False


class WorkerProcess:
    """A fresh Python with our pipe, no secrets, and its output in a file that outlives it.

    Not `multiprocessing.Process`: that would run the user's main script a second time in every worker, and its children
    may not have children of their own, which reward functions that run code need.
    """

    def __init__(self, setup: bytes, timeout: float, environment: dict[str, str], folder: str) -> None:
        self.timeout = timeout
        self.ready: Ready | None = None
        self.jobs: dict[int, Job] = {}  # unanswered, by index in the chunk
        self.num_sent = 0
        self.sent_at = time.monotonic()
        self.deadline: float | None = self.sent_at + STARTUP_SECONDS
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self.connection, theirs = Pipe()
        path = [str(entry) for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from burnish.reward.worker import main; main({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(theirs.fileno(),),
            env=environment,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is the parent's affair, and `end` reaches the worker's children too
        )
        theirs.close()
        with contextlib.suppress(OSError):  # already dead: the next read says so
            self.connection.send_bytes(setup)

    @property
    def idle(self) -> bool:
        return self.ready is not None and not self.jobs

    def receive(self) -> bytes:
        """The next message; EOFError when the worker is gone."""
        try:
            return self.connection.recv_bytes()
        except OSError as error:
            raise EOFError(str(error)) from error

    def started(self, message: bytes) -> None:
        """Take the first message in; it may be a UserError."""
        first: Ready | UserError = pickle.loads(message)
        if isinstance(first, UserError):
            raise first
        self.ready, self.deadline = first, None

    def send(self, jobs: list[Job]) -> None:
        """Hand over a chunk. EOFError when the worker is gone; the jobs are then still the caller's."""
        try:
            self.connection.send_bytes(pickle.dumps([job.payload for job in jobs]))
        except OSError as error:
            raise EOFError(str(error)) from error
        self.jobs = dict(enumerate(jobs))
        self.num_sent = len(jobs)
        self.sent_at = time.monotonic()
        self.deadline = self.sent_at + self.timeout + (_ASYNC_GRACE if self.ready.concurrent else 0.0)

    def answered(self, message: bytes) -> tuple[Job, Outcome]:
        """Match a reply with its job, and give the next sample its own time. EOFError if it makes no sense."""
        try:
            # JSON, not pickle: reward functions may run what a model wrote, and a pickle could run it here as well.
            index, *fields = json.loads(message)
            outcome = Outcome(*fields)
            job = self.jobs.pop(index)
        except (ValueError, TypeError, KeyError) as error:
            raise EOFError(f"a reply that makes no sense: {error}") from error
        if not self.jobs:
            self.deadline = None
        elif not self.ready.concurrent:
            self.deadline = time.monotonic() + self.timeout
        return job, outcome

    def unanswered(self) -> tuple[Job | None, deque[Job]]:
        """The job that ended the worker, if it can be told, and the others."""
        others = deque(self.jobs.values())
        self.jobs = {}
        if others and (len(others) == 1 or not self.ready.concurrent):
            return others.popleft(), others
        return None, others

    def end(self) -> str:
        """Kill the worker and its children; what it last wrote to stdout or stderr."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        self._output.close()
        return trimmed(text.strip())

    def how_it_ended(self) -> str:
        """Exit status or signal. Waits for a process that has closed its pipe but is not gone yet."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        status = self._process.returncode
        if status is None:
            return "closed its pipe"
        return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"
