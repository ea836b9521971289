"""WorkerProcess: the parent's handle of one worker process."""

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
from burnish.reward.isolation import WorkerIsolation
from burnish.reward.sample import KINDS, Outcome, Sample
from burnish.reward.worker import STARTUP_SECONDS, Ready

_ASYNC_GRACE = 2.0  # extra seconds for the worker to enforce the time limit of an async function itself


@dataclass(eq=False)
class Job:
    """A sample to score. After its worker died it is retried `alone`, to find out whether it was the cause.

    With `parts` the job is a batch: one call for all parts, with the sum of their time limits.
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
    """A new Python interpreter connected by a pipe, without secrets in its environment, with its output in a file.

    Not `multiprocessing.Process`, which would run the user's main script again in every worker and forbids daemonic
    children to start processes, which reward functions that run code need.
    """

    def __init__(
        self,
        setup: bytes,
        timeout: float,
        environment: dict[str, str],
        folder: str,
        isolation: WorkerIsolation | None = None,
    ) -> None:
        self.timeout = timeout
        self.ready: Ready | None = None
        self.jobs: dict[int, Job] = {}  # without a reply, by index in the chunk
        self.num_sent = 0
        self._chunk_number = 0
        self.sent_at = time.monotonic()
        self.limit = STARTUP_SECONDS  # seconds for the current call or start-up
        self.deadline: float | None = self.sent_at + self.limit
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self.channel = Channel()
        worker_end = self.channel.worker_end
        self._temp_folder = tempfile.mkdtemp(prefix="burnish-reward-")
        self._isolated = isolation is not None
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", self._code(worker_end.fileno(), lifeline, isolation)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(worker_end.fileno(), lifeline),
                env=environment | {"TMPDIR": self._temp_folder},
                cwd=folder,
                start_new_session=True,  # only the parent gets Ctrl-C, and `stop` can kill the worker's children
            )
        finally:
            os.close(lifeline)
            worker_end.close()
        with contextlib.suppress(EOFError):  # already dead, which the next read reports
            self.channel.send(setup)

    def _code(self, descriptor: int, lifeline: int, isolation: WorkerIsolation | None) -> str:
        path = [str(entry) for entry in sys.path]
        start = f"import sys; sys.path[:] = {path!r}; from burnish.reward.worker import main; "
        if isolation is None:
            return f"{start} main({descriptor})"
        text = str(replace(isolation, lifeline=lifeline, folder=self._temp_folder))
        isolate = "from burnish.reward.isolation import run_isolated; "
        return f"{start}{isolate}run_isolated({text!r}, lambda: main({descriptor}))"

    @property
    def concurrent(self) -> bool:
        """Whether samples of a chunk run concurrently (async function)."""
        return self.ready is not None and self.ready.concurrent

    @property
    def idle(self) -> bool:
        return self.ready is not None and not self.jobs

    def handle_ready(self, message: bytes) -> None:
        """Process the worker's first message; raise it if it is a UserError."""
        ready: Ready | UserError = pickle.loads(message)
        if isinstance(ready, UserError):
            raise ready
        self.ready, self.deadline = ready, None

    def send(self, jobs: list[Job]) -> None:
        """Send a chunk of jobs. EOFError if the worker has exited; the caller then keeps the jobs."""
        seconds = [self.timeout * job.count for job in jobs]
        total = max(seconds) if self.concurrent else sum(seconds)
        self._chunk_number += 1
        self.channel.send(pickle.dumps((self._chunk_number, total, [job.payload for job in jobs])))
        self.jobs = dict(enumerate(jobs))
        self.num_sent = len(jobs)
        self.sent_at = time.monotonic()
        self.limit = total if self.concurrent else seconds[0]
        self.deadline = self.sent_at + self.limit + (_ASYNC_GRACE if self.concurrent else 0.0)

    def parse_reply(self, message: bytes) -> tuple[Job, Outcome]:
        """Match a reply with its job; restart the time limit for the next sample. EOFError if the reply is invalid."""
        try:
            # JSON, not pickle: the reward function may have run model-written code that sends a malicious pickle.
            number, index, *fields = json.loads(message)
            outcome = validate_outcome(Outcome(*fields))
            if number != self._chunk_number:
                raise KeyError(number)
            job = self.jobs.pop(index)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EOFError(f"invalid reply: {error}") from error
        if not self.jobs:
            self.deadline = None
        elif not self.concurrent:
            self.limit = self.timeout * next(iter(self.jobs.values())).count
            self.deadline = time.monotonic() + self.limit
        return job, outcome

    def take_unfinished(self) -> tuple[Job | None, deque[Job]]:
        """The job that made the worker hang or die, if it is known, and the other unfinished jobs."""
        others = deque(self.jobs.values())
        self.jobs = {}
        if others and (len(others) == 1 or not self.concurrent):
            return others.popleft(), others
        return None, others

    def kill(self) -> None:
        """Kill the worker and its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> str:
        """Kill the worker; return the end of its stdout and stderr."""
        os.close(self._lifeline)
        if self._isolated:
            # The watcher kills everything. If it were killed itself, it might not be reaped and stay a zombie.
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
        shutil.rmtree(self._temp_folder, ignore_errors=True)
        return trimmed(text.strip())

    def exit_reason(self) -> str:
        """Exit status or signal. Waits briefly for a process that has closed its pipe but not exited yet."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        status = self._process.returncode
        if status is None:
            return "closed its pipe"
        return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"


def validate_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome if its fields are valid, else raise ValueError: a worker may have been tampered with."""
    is_number = isinstance(outcome.value, int | float) and math.isfinite(outcome.value)
    are_texts = isinstance(outcome.text, str) and isinstance(outcome.printed, str)
    if not (is_number and are_texts and isinstance(outcome.extras, dict) and outcome.kind in KINDS):
        raise ValueError("not an outcome")
    return outcome
