"""Pool: worker processes, and the one thread that feeds and watches them."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from multiprocessing import Pipe
from multiprocessing.connection import wait

from burnish.errors import UserError
from burnish.reward.evaluate import Setup
from burnish.reward.isolation import Borders, problem_with
from burnish.reward.limits import worker_environment
from burnish.reward.process import Job, WorkerProcess
from burnish.reward.sample import DIED, TIMED_OUT, Outcome
from burnish.reward.settings import RewardSettings
from burnish.reward.source import Source
from burnish.reward.worker import STARTUP_SECONDS, Ready

logger = logging.getLogger("burnish.reward")

_CHUNK_SECONDS = 0.02  # of work per message: enough to make the round trip cheap, little enough to share out evenly
_CHUNK_MOST = 64
_START_FAILURES_MOST = 3


def borders_of(source: Source, settings: RewardSettings) -> Borders | None:
    """As `reward.isolate` and `reward.network` ask, and as far as this system can; None is no isolation."""
    if settings.isolate is False:
        if not settings.network:
            problem = "workers that are not isolated have the network"
            raise UserError(problem, key="reward.network", value=False, hint="reward.isolate=null")
        return None
    strict = settings.isolate is True
    if not source.is_foreign and problem_with(network=False, read_only=True) is None:
        return Borders(False, True, settings.memory_mb)  # our own rules need neither network nor files
    problem = problem_with(network=settings.network, read_only=strict)
    if problem is None:
        return Borders(settings.network, strict, settings.memory_mb)
    if strict or not settings.network:
        key = "reward.isolate" if strict else "reward.network"
        hint = f"{key}={'null' if strict else 'true'} to run without"
        raise UserError(f"this system cannot do it ({problem})", key=key, value=strict, hint=hint)
    return None


def _not_isolated(settings: RewardSettings) -> str:
    problem = problem_with(network=settings.network, read_only=False)
    return f"reward functions have limits of time and memory, but could reach other processes: {problem}"


class Pool:
    """`put` a job from any thread; `finish(job, outcome)` is called for it from the pool's own thread."""

    def __init__(self, source: Source, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self._source = source
        self._settings = settings
        self._finish = finish
        self._environment, withheld = worker_environment(os.environ, settings.pass_env)
        setup = Setup(source, dict(settings.reward_kwargs), settings.timeout, settings.memory_mb, withheld)
        self._setup = pickle.dumps(setup)  # the same bytes for every worker, also those started much later
        self._folder = os.getcwd()
        self._borders = borders_of(source, settings)
        self.notices = [] if self._borders is not None or settings.isolate is False else [_not_isolated(settings)]
        self._queue: deque[Job] = deque()
        self._seconds_per_sample = _CHUNK_SECONDS  # a first guess: one sample per message
        self._start_failures = 0
        self._closing = False
        self._broken: Exception | None = None
        self._lock = threading.Lock()  # guards _rung, _closing and the bell's sending end
        self._rung = False
        self._bell, self._bell_rope = Pipe(duplex=False)
        self._workers = [self._first_worker()]
        self._thread = threading.Thread(target=self._serve, name="burnish-reward", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._closing:
                raise self._broken or RuntimeError("the scorer is closed")
            self._queue.append(job)
            self._ring()

    def close(self) -> None:
        """End the workers; jobs not done yet are cancelled."""
        with self._lock:
            self._closing = True
            self._ring()
        self._thread.join()

    def _ring(self) -> None:
        if not self._rung and not self._bell_rope.closed:
            self._rung = True
            self._bell_rope.send_bytes(b"1")

    def _new_worker(self) -> WorkerProcess:
        return WorkerProcess(self._setup, self._settings.timeout, self._environment, self._folder, self._borders)

    def _first_worker(self) -> WorkerProcess:
        """Start one worker and wait for it, so that a bad function is known before anything heavy is loaded."""
        worker = self._new_worker()
        try:
            if not worker.channel.poll(STARTUP_SECONDS):
                raise UserError(
                    f"loading the reward function took longer than {STARTUP_SECONDS:g} s", key=self._source.key
                )
            worker.started(worker.channel.receive())
        except EOFError as error:
            how = worker.how_it_ended()
            raise UserError(
                f"the worker process died ({how}) while it loaded the reward function: {worker.end()}",
                key=self._source.key,
                hint="reward.memory_mb=... if it needs more memory",
            ) from error
        except BaseException:
            worker.end()
            raise
        if self._settings.memory_mb > 0 and not worker.ready.memory_limited:
            logger.info("reward.memory_mb=%d: this system enforces no memory limit", self._settings.memory_mb)
        return worker

    def _serve(self) -> None:
        try:
            while not self._closing:
                while len(self._workers) < self._settings.num_workers:
                    self._workers.append(self._new_worker())
                self._assign()
                self._listen()
                self._end_overdue()
        except Exception as error:  # the thread must not vanish while others wait for its futures
            self._broken = error
        finally:
            self._shut_down()

    def _assign(self) -> None:
        for worker in self._workers:
            if not self._queue:
                return
            if worker.idle:
                chunk = self._next_chunk(worker.ready)
                try:
                    if chunk:
                        worker.send(chunk)
                except EOFError:
                    self._queue.extendleft(reversed(chunk))
                    worker.kill()  # it is dead or does not read; the next listening finds it dead

    def _next_chunk(self, ready: Ready) -> list[Job]:
        """Several jobs if they are quick, one if it is slow; a suspect goes alone."""
        most = _CHUNK_MOST if ready.concurrent else int(_CHUNK_SECONDS / self._seconds_per_sample)
        fair_share = -(-len(self._queue) // self._settings.num_workers)
        size = max(1, min(most, fair_share, _CHUNK_MOST))
        chunk: list[Job] = []
        while self._queue and len(chunk) < size and not (chunk and (self._queue[0].alone or chunk[0].alone)):
            job = self._queue.popleft()
            # A job that was sent before is running already, as far as its future knows.
            if job.future.running() or job.future.set_running_or_notify_cancel():
                chunk.append(job)
        return chunk

    def _listen(self) -> None:
        """Sleep until a worker speaks, the bell rings or a deadline passes; take in what was said."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        speaking = wait([self._bell, *(worker.channel for worker in self._workers)], patience)
        if self._bell in speaking:
            with self._lock:
                self._bell.recv_bytes()
                self._rung = False
        for worker in [worker for worker in self._workers if worker.channel in speaking]:
            self._take_in(worker)

    def _take_in(self, worker: WorkerProcess) -> None:
        try:
            for message in worker.channel.take():
                if worker.ready is None:
                    worker.started(message)
                    self._start_failures = 0
                else:
                    self._settle(worker, message)
        except EOFError:
            self._replace(worker, DIED, f"the worker died ({worker.how_it_ended()})")
        except UserError as error:
            self._replace(worker, DIED, str(error))

    def _settle(self, worker: WorkerProcess, message: bytes) -> None:
        job, outcome = worker.answered(message)
        if not worker.jobs and not worker.ready.concurrent:
            latest = max(1e-6, (time.monotonic() - worker.sent_at) / worker.num_sent)
            # Slow down at once, speed up gradually: a chunk of slow samples keeps other workers waiting.
            self._seconds_per_sample = max(latest, 0.5 * (self._seconds_per_sample + latest))
        self._finish(job, outcome)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.deadline is not None and worker.deadline <= now:
                self._replace(worker, TIMED_OUT, f"timed out after {worker.limit:g} s")

    def _replace(self, worker: WorkerProcess, kind: str, problem: str) -> None:
        """End a worker that hangs or died; the guilty sample fails, the others go back to the front of the queue."""
        was_starting = worker.ready is None
        guilty, others = worker.unanswered()
        last_words = worker.end()
        self._workers.remove(worker)
        if guilty is not None and kind == DIED and not guilty.alone:
            # Perhaps something else killed the worker, such as a system short of memory: it may try once more.
            guilty.alone = True
            others.appendleft(guilty)
            guilty = None
        elif guilty is None:
            for job in others:
                job.alone = True
        if guilty is None:
            logger.warning("a reward worker was replaced: %s %s", problem, last_words)
        else:
            text = f"{problem} in {self._source.label(guilty.sample.data_source)}"
            self._finish(guilty, Outcome(kind=kind, text=f"{text}\n{last_words}" if last_words else text))
        self._queue.extendleft(reversed(others))
        self._start_failures += was_starting
        if self._start_failures >= _START_FAILURES_MOST:
            raise UserError(f"reward workers cannot be started any more: {problem} {last_words}", key=self._source.key)

    def _shut_down(self) -> None:
        problem = self._broken or RuntimeError("the scorer was closed before this sample was scored")
        with self._lock:
            self._closing = True
            self._bell_rope.close()
        self._bell.close()
        for worker in self._workers:
            self._queue.extend(worker.jobs.values())
            worker.end()
        for job in self._queue:
            if self._broken or not job.future.cancel():  # a cancelled future would not say what broke
                with contextlib.suppress(InvalidStateError):  # its owner cancelled it
                    job.future.set_exception(problem)
        self._queue.clear()
