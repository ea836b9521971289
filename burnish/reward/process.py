"""WorkerProcess: the parent's handle of one worker process."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, Any

from burnish.errors import NotSupportedYet, UserError
from burnish.isolation.limits import MEMORY, PROCESSES, Limits
from burnish.isolation.plan import HOST, READ_ONLY_HOST
from burnish.isolation.spawn import IsolatedProcess, spawn_isolated
from burnish.reward.call import Inputs, trimmed
from burnish.reward.channel import Channel
from burnish.reward.sample import KINDS, Outcome, Sample, check_extras, check_score
from burnish.reward.worker import DONE, MAX_TEXT, STARTED, STARTUP_SECONDS, Ready

_ASYNC_GRACE = 2.0  # extra seconds for the worker to enforce the time limit of an async function itself
_MAX_PROCESSES = 512  # of a worker and its children; threads count
_BATCH_DEPTH = 3  # {"outcomes": [[value, extras, ...], ...]}
_FOLDER_MB = 1024  # of an isolated worker's temporary folder, which is in memory
_KILL_REASONS = {
    MEMORY: "its processes together used more than reward.memory_mb",
    PROCESSES: f"it had more than {_MAX_PROCESSES} processes",
}


@dataclass(frozen=True)
class WorkerIsolation:
    """How to isolate a worker. With `read_only` it can write only to its temporary folder, and has no devices."""

    mode: str
    network: bool = True
    read_only: bool = False
    memory_mb: int = 0  # for all its processes together; 0 means no limit


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
        self.started = False  # whether the worker has begun the current chunk
        self._last: tuple[Job, Outcome] | None = None  # the latest reply, until the worker goes on
        self.sent_at = time.monotonic()
        self.limit = STARTUP_SECONDS  # seconds for the current call or start-up
        self.deadline: float | None = self.sent_at + self.limit
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self.channel = Channel()
        worker_end = self.channel.worker_end
        self._temp_folder = tempfile.mkdtemp(prefix="burnish-reward-")
        path = [str(entry) for entry in sys.path]
        code = (
            f"import sys; sys.path[:] = {path!r}; from burnish.reward.worker import main; main({worker_end.fileno()})"
        )
        command = [sys.executable, "-u", "-c", code]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}
        options |= {"pass_fds": (worker_end.fileno(),), "env": environment | {"TMPDIR": self._temp_folder}}
        try:
            self._process = self._start(command, folder, isolation, options)
        finally:
            worker_end.close()
        with contextlib.suppress(EOFError):  # already dead, which the next read reports
            self.channel.send(setup)

    def _start(
        self, command: list[str], folder: str, isolation: WorkerIsolation | None, options: dict[str, Any]
    ) -> subprocess.Popen:
        self._report: IO[bytes] | None = None
        if isolation is None:
            # Only the parent gets Ctrl-C, and `stop` can kill the worker's children.
            return subprocess.Popen(command, cwd=folder, start_new_session=True, **options)
        reader, writer = os.pipe()
        self._report = os.fdopen(reader, "rb")
        limits = Limits(
            memory_mb=isolation.memory_mb or None, file_mb=_FOLDER_MB, processes=_MAX_PROCESSES, open_files=None
        )
        with os.fdopen(writer, "wb"):
            return spawn_isolated(
                command,
                mode=isolation.mode,
                view=READ_ONLY_HOST if isolation.read_only else HOST,
                network=isolation.network,
                folder=folder,
                limits=limits,
                report=writer,
                **options,
            )

    @property
    def concurrent(self) -> bool:
        """Whether samples of a chunk run concurrently (async function)."""
        return self.ready is not None and self.ready.concurrent

    @property
    def idle(self) -> bool:
        return self.ready is not None and not self.jobs and self._last is None

    def handle_ready(self, message: bytes) -> None:
        """Process the worker's first message; raise the error that it contains."""
        self.ready, self.deadline = parse_first_message(message), None

    def send(self, jobs: list[Job]) -> None:
        """Send a chunk of jobs. EOFError if the worker has exited; the caller then keeps the jobs."""
        seconds = [self.timeout * job.count for job in jobs]
        total = max(seconds) if self.concurrent else sum(seconds)
        self._chunk_number += 1
        self.channel.send(pickle.dumps((self._chunk_number, total, [job.payload for job in jobs])))
        self.started = False
        self.jobs = dict(enumerate(jobs))
        self.num_sent = len(jobs)
        self.sent_at = time.monotonic()
        self.limit = total if self.concurrent else seconds[0]
        self.deadline = self.sent_at + self.limit + (_ASYNC_GRACE if self.concurrent else 0.0)

    def parse_message(self, message: bytes) -> tuple[Job, Outcome] | None:
        """Process a message of the worker; return the job that it completes. EOFError if the message is invalid.

        A reply counts when the worker has begun the next sample, or is done with the chunk: a function that answers and
        then hangs must fail its own sample, not the next one.
        """
        try:
            # JSON, not pickle: the reward function may have run model-written code that sends a malicious pickle.
            number, index, *fields = json.loads(message)
            if number != self._chunk_number:
                raise KeyError(number)
            if index == STARTED:
                return self._handle_start()
            if index == DONE:
                self.deadline = self.deadline if self.jobs else None
                return self._take_last()
            if self._last is not None and not self.concurrent:
                raise ValueError("two replies for one sample")
            outcome = validate_outcome(Outcome(*fields), self.jobs[index].parts)
            completed, self._last = self._take_last(), (self.jobs.pop(index), outcome)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EOFError(f"invalid reply: {error}") from error
        return completed

    def _handle_start(self) -> tuple[Job, Outcome] | None:
        """Start the time limit: it does not count how long a busy machine takes to wake the worker."""
        if not self.jobs or (self.started and self._last is None):
            raise ValueError("no sample can begin now")
        self.started = True
        if not self.concurrent:
            self.limit = self.timeout * next(iter(self.jobs.values())).count
        self.deadline = time.monotonic() + self.limit + (_ASYNC_GRACE if self.concurrent else 0.0)
        return self._take_last()

    def _take_last(self) -> tuple[Job, Outcome] | None:
        last, self._last = self._last, None
        return last

    def take_unfinished(self) -> tuple[Job | None, deque[Job]]:
        """The job that made the worker hang or die, if it is known, and the other unfinished jobs."""
        others = deque(self.jobs.values())
        if self._last is not None:
            others.appendleft(self._last[0])
        self.jobs, self._last = {}, None
        if others and (len(others) == 1 or not self.concurrent):
            return others.popleft(), others
        return None, others

    def kill(self) -> None:
        """Kill the worker and its process group, with everything below it if it is isolated."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> str:
        """Kill the worker; return the end of its stdout and stderr."""
        if isinstance(self._process, IsolatedProcess):
            self._process.stop()
        else:
            self.kill()
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        reason = self._kill_reason()
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        self._output.close()
        shutil.rmtree(self._temp_folder, ignore_errors=True)
        return trimmed(f"{text.strip()}\n{reason}".strip())

    def _kill_reason(self) -> str:
        """Which limit of all processes together the worker exceeded; empty if none."""
        if self._report is None:
            return ""
        with self._report:
            text = self._report.read()
        report = json.loads(text) if text else {}
        if "problem" in report:
            return f"the worker could not be isolated: {report['problem']}"
        return _KILL_REASONS.get(report.get("killed", ""), "")

    def exit_reason(self) -> str:
        """Exit status or signal. Waits briefly for a process that has closed its pipe but not exited yet."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        status = self._process.returncode
        if status is None:
            return "closed its pipe"
        return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"


def validate_outcome(outcome: Outcome, parts: Sequence[Job] = ()) -> Outcome:
    """Return the outcome if its fields are valid, else raise ValueError: a worker may have been tampered with.

    The outcome of a batch has those of its `parts` as extras.
    """
    is_number = isinstance(outcome.value, int | float)
    are_texts = isinstance(outcome.text, str) and isinstance(outcome.printed, str)
    if not (is_number and are_texts and isinstance(outcome.extras, dict) and outcome.kind in KINDS):
        raise ValueError("not an outcome")
    check_extras(outcome.extras, depth=-_BATCH_DEPTH if parts else 0)
    if len(outcome.text) + len(outcome.printed) > MAX_TEXT:
        raise ValueError("a text that is too long")
    return outcome._replace(value=check_score(outcome.value))


def parse_first_message(message: bytes) -> Ready:
    """What the worker says when it has loaded the function; UserError if it could not, or if it says nonsense.

    JSON, because the user's file may have run before: it must not be able to send a pickle.
    """
    try:
        values = json.loads(message)
        if "problem" in values:
            kind = NotSupportedYet if values.pop("unsupported") else UserError
            raise kind(values.pop("problem"), **{name: values[name] for name in ("key", "value", "allowed", "hint")})
        columns = tuple(map(str, values["columns"]))
        flags = {name: values[name] is True for name in ("concurrent", "memory_limited", "texts", "row", "pictures")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"the worker of the reward function sent an invalid first message: {error}") from error
    inputs = Inputs(flags["texts"], flags["row"], columns, flags["pictures"])
    return Ready(flags["concurrent"], flags["memory_limited"], inputs)
