"""WorkerPool: worker processes, and the thread that dispatches jobs to them and supervises them."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from burnish.errors import UserError
from burnish.isolation.probe import worker_mode
from burnish.reward.evaluate import Setup
from burnish.reward.limits import worker_environment
from burnish.reward.process import Job, WorkerIsolation, WorkerProcess
from burnish.reward.sample import DIED, TIMED_OUT, Outcome
from burnish.reward.settings import RewardSettings
from burnish.reward.source import RewardSource
from burnish.reward.worker import STARTUP_SECONDS

logger = logging.getLogger("burnish.reward")

_CHUNK_SECONDS = 0.02  # of work per message: amortizes the round trip, but still balances the load
_MAX_CHUNK = 64
_MAX_START_FAILURES = 3


def worker_isolation(source: RewardSource, settings: RewardSettings) -> WorkerIsolation | None:
    """Isolation as set by `reward.isolate` and `reward.network` and supported by this system; None means none."""
    if settings.isolate is False:
        if not settings.network:
            problem = "workers without isolation always have network access"
            raise UserError(problem, key="reward.network", value=False, hint="reward.isolate=null")
        return None
    strict = settings.isolate is True
    if not source.is_user_code:
        mode, _ = worker_mode(network=False, read_only=True)
        if mode is not None:  # built-in rules need neither the network nor writable files
            return WorkerIsolation(mode, network=False, read_only=True, memory_mb=settings.memory_mb)
    mode, problem = worker_mode(network=settings.network, read_only=strict)
    if mode is not None:
        return WorkerIsolation(mode, settings.network, strict, settings.memory_mb)
    if strict or not settings.network:
        key = "reward.isolate" if strict else "reward.network"
        hint = f"{key}={'null' if strict else 'true'} to run without it"
        raise UserError(f"not supported on this system ({problem})", key=key, value=strict, hint=hint)
    return None


def _no_isolation_notice(settings: RewardSettings) -> str:
    problem = "reward.isolate=false"
    if settings.isolate is not False:
        _, problem = worker_mode(network=settings.network, read_only=False)
    return f"reward functions have time and memory limits, but are not isolated from other processes: {problem}"


class WorkerPool:
    """`put` is thread-safe; `finish(job, outcome)` is called from the pool's thread."""

    def __init__(self, source: RewardSource, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self._source = source
        self._settings = settings
        self._finish = finish
        self._environment, withheld = worker_environment(os.environ, settings.pass_env)
        setup = Setup(source, dict(settings.reward_kwargs), settings.timeout, settings.memory_mb, withheld)
        self._setup = pickle.dumps(setup)  # pickled once, so that workers started later get the same
        self._folder = os.getcwd()
        self._isolation = worker_isolation(source, settings)
        self.notices = [] if self._isolation is not None else [_no_isolation_notice(settings)]
        self._queue: deque[Job] = deque()
        self._seconds_per_sample = _CHUNK_SECONDS  # initial estimate: one sample per message
        self._start_failures = 0
        self._replaced: Counter[str] = Counter()  # workers, by the problem
        self._closing = False
        self._broken: Exception | None = None
        self._lock = threading.Lock()  # guards _wakeup_sent, _closing and _wakeup_writer
        self._wakeup_sent = False
        self._wakeup_reader, self._wakeup_writer = Pipe(duplex=False)
        self._workers = [self._first_worker()]
        assert self._workers[0].ready is not None
        self.inputs = self._workers[0].ready.inputs
        self._thread = threading.Thread(target=self._serve, name="burnish-reward", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._closing:
                raise self._broken or RuntimeError("the scorer is closed")
            self._queue.append(job)
            self._wake_up()

    def close(self) -> None:
        """Stop the workers and cancel pending jobs."""
        with self._lock:
            self._closing = True
            self._wake_up()
        self._thread.join()

    def _wake_up(self) -> None:
        if not self._wakeup_sent and not self._wakeup_writer.closed:
            self._wakeup_sent = True
            self._wakeup_writer.send_bytes(b"1")

    def _new_worker(self) -> WorkerProcess:
        return WorkerProcess(self._setup, self._settings.timeout, self._environment, self._folder, self._isolation)

    def _first_worker(self) -> WorkerProcess:
        """Start one worker and wait for it, so that a bad function fails before models are loaded."""
        worker = self._new_worker()
        try:
            if not worker.channel.poll(STARTUP_SECONDS):
                raise UserError(
                    f"loading the reward function took longer than {STARTUP_SECONDS:g} s", key=self._source.key
                )
            worker.handle_ready(worker.channel.receive())
        except EOFError as error:
            reason = worker.exit_reason()
            raise UserError(
                f"the worker process died ({reason}) while loading the reward function: {worker.stop()}",
                key=self._source.key,
                hint="reward.memory_mb=... if it needs more memory",
            ) from error
        except BaseException:
            worker.stop()
            raise
        if self._settings.memory_mb > 0 and worker.ready is not None and not worker.ready.memory_limited:
            logger.info("reward.memory_mb=%d: not enforced on this system", self._settings.memory_mb)
        return worker

    def _serve(self) -> None:
        try:
            while not self._closing:
                while len(self._workers) < self._settings.num_workers:
                    self._workers.append(self._new_worker())
                self._assign()
                self._poll()
                self._stop_overdue()
        except Exception as error:  # fail the pending futures instead of leaving them waiting
            self._broken = error
        finally:
            self._shut_down()

    def _assign(self) -> None:
        for worker in self._workers:
            if not self._queue:
                return
            if worker.idle:
                chunk = self._next_chunk(concurrent=worker.concurrent)
                try:
                    if chunk:
                        worker.send(chunk)
                except EOFError:
                    self._queue.extendleft(reversed(chunk))
                    worker.kill()  # dead or not reading; the next poll replaces it

    def _next_chunk(self, *, concurrent: bool) -> list[Job]:
        """Several jobs if they are fast, one if it is slow; a job marked `alone` is sent by itself."""
        limit = _MAX_CHUNK if concurrent else int(_CHUNK_SECONDS / self._seconds_per_sample)
        fair_share = -(-len(self._queue) // self._settings.num_workers)
        size = max(1, min(limit, fair_share, _MAX_CHUNK))
        chunk: list[Job] = []
        while self._queue and len(chunk) < size and not (chunk and (self._queue[0].alone or chunk[0].alone)):
            job = self._queue.popleft()
            # The future of a retried job is already running.
            if job.future.running() or job.future.set_running_or_notify_cancel():
                chunk.append(job)
        return chunk

    def _poll(self) -> None:
        """Wait for a message, a wake-up or a deadline, and process the messages."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        sources: list[Any] = [self._wakeup_reader, *(worker.channel for worker in self._workers)]
        readable = wait(sources, timeout)
        if self._wakeup_reader in readable:
            with self._lock:
                self._wakeup_reader.recv_bytes()
                self._wakeup_sent = False
        for worker in [worker for worker in self._workers if worker.channel in readable]:
            self._read_messages(worker)

    def _read_messages(self, worker: WorkerProcess) -> None:
        try:
            for message in worker.channel.take():
                if worker.ready is None:
                    worker.handle_ready(message)
                    self._start_failures = 0
                else:
                    self._handle_reply(worker, message)
        except EOFError:
            self._replace(worker, DIED, f"the worker died ({worker.exit_reason()})")
        except UserError as error:
            self._replace(worker, DIED, str(error))

    def _handle_reply(self, worker: WorkerProcess, message: bytes) -> None:
        completed = worker.parse_message(message)
        if completed is None:
            return
        if worker.idle and not worker.concurrent:
            latest = max(1e-6, (time.monotonic() - worker.sent_at) / worker.num_sent)
            # Shrink chunks at once, grow them gradually: a chunk of slow samples leaves other workers idle.
            self._seconds_per_sample = max(latest, 0.5 * (self._seconds_per_sample + latest))
        self._finish(*completed)

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.deadline is not None and worker.deadline <= now:
                self._replace(worker, TIMED_OUT, f"timed out after {worker.limit:g} s")

    def _replace(self, worker: WorkerProcess, kind: str, problem: str) -> None:
        """Replace a worker that hangs or died; the sample that caused it fails, the others are requeued first."""
        was_starting = worker.ready is None
        culprit, others = worker.take_unfinished()
        output = worker.stop()
        self._workers.remove(worker)
        if culprit is not None and (kind == DIED or not worker.started) and not culprit.alone:
            # Something else may have killed the worker, such as the OOM killer, or an earlier sample may have left it
            # hanging: retry once.
            culprit.alone = True
            others.appendleft(culprit)
            culprit = None
        elif culprit is None:
            for job in others:
                job.alone = True
        if culprit is None:
            self._log_replaced(f"{problem} {output}".rstrip())
        else:
            text = f"{problem} in {self._source.label(culprit.sample.data_source)}"
            self._finish(culprit, Outcome(kind=kind, text=f"{text}\n{output}" if output else text, printed=output))
        self._queue.extendleft(reversed(others))
        self._start_failures += was_starting
        if self._start_failures >= _MAX_START_FAILURES:
            raise UserError(
                f"reward workers failed to start {_MAX_START_FAILURES} times: {problem} {output}", key=self._source.key
            )

    def _log_replaced(self, problem: str) -> None:
        """Once for each problem; the count follows at the end."""
        self._replaced[problem] += 1
        if self._replaced[problem] == 1:
            logger.warning("a reward worker was replaced: %s", problem)

    def _shut_down(self) -> None:
        problem = self._broken or RuntimeError("the scorer was closed before this sample was scored")
        with self._lock:
            self._closing = True
            self._wakeup_writer.close()
        self._wakeup_reader.close()
        for text, count in self._replaced.items():
            if count > 1:
                logger.warning("%d reward workers were replaced: %s", count, text)
        for worker in self._workers:
            self._queue.extend(worker.jobs.values())
            worker.stop()
        for job in self._queue:
            if self._broken or not job.future.cancel():  # a cancelled future would hide the error
                with contextlib.suppress(InvalidStateError):  # cancelled by the caller
                    job.future.set_exception(problem)
        self._queue.clear()
