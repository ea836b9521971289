"""UserCode: runs a tool's functions off the event loop. A call that hangs is abandoned; the number of those is bounded.

Plain functions run in daemon threads, coroutines in an event loop of the tool's own thread. So a coroutine that blocks
holds up its own tool only, and what a tool keeps from one step to the next (HTTP sessions, locks) stays in one loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

MAX_THREADS = 256  # asyncio's own pool has cpu + 4, so that a few waiting tools would hold up all others
MAX_STUCK = 8  # abandoned calls of one tool that may still hang
IDLE_SECONDS = 60.0  # until a thread without work ends
BLOCKED_SECONDS = 1.0  # until an event loop that does not answer counts as blocked


class ToolHangs(RuntimeError):
    """Too many earlier calls of the tool never returned."""


@dataclass(eq=False)
class _Job:
    owner: str
    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    running: bool = False
    abandoned: bool = False


class ThreadPool:
    """Daemon threads, so that a hung one does not keep the process alive. `stuck` counts abandoned calls by tool."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self.max_threads = max_threads
        self.stuck: Counter[str] = Counter()
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._num_threads = self._num_idle = 0  # without those that are stuck

    def submit(self, owner: str, function: Callable[[], Any]) -> _Job:
        job = _Job(owner, function)
        with self._changed:
            self._jobs.append(job)
            if self._num_idle >= len(self._jobs):
                self._changed.notify()
            elif self._num_threads < self.max_threads:
                self._start_thread()
        return job

    def abandon(self, job: _Job) -> None:
        """Nobody waits for this job any more. If it runs, its thread is stuck until it returns."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
            elif job.running:
                job.abandoned = True
                self.stuck[job.owner] += 1
                self._num_threads -= 1
                if self._jobs and self._num_idle < len(self._jobs):
                    self._start_thread()

    def count_stuck(self, owner: str, change: int) -> None:
        """Count a thread of this tool that is not of the pool."""
        with self._changed:
            self.stuck[owner] += change

    def _start_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._work, name=f"tool-{self._num_threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    result = job.function()
                except BaseException as error:  # sys.exit() of a tool is no reason to end the run
                    job.future.set_exception(_raisable(error))
                else:
                    job.future.set_result(result)
                    del result  # may be large
            with self._changed:
                job.running = False
                if job.abandoned:
                    self.stuck[job.owner] -= 1
                    if self._num_threads >= self.max_threads:
                        return
                    self._num_threads += 1

    def _next_job(self) -> _Job | None:
        """The next job; None ends the thread."""
        with self._changed:
            self._num_idle += 1
            try:
                while not self._jobs:
                    if not self._changed.wait(IDLE_SECONDS) and not self._jobs:
                        self._num_threads -= 1
                        return None
                job = self._jobs.popleft()
                job.running = True
                return job
            finally:
                self._num_idle -= 1


@functools.cache
def threads() -> ThreadPool:
    """The pool that all tools share."""
    return ThreadPool()


class LoopThread:
    """A daemon thread with an event loop that lives until `close`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def submit(self, awaitable: Awaitable[Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.loop)

    def close(self) -> None:
        """Stop the loop once it is free; does not wait for one that is blocked."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class UserCode:
    """The functions of one tool."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread: LoopThread | None = None
        self._blocked_since: float | None = None
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function. If this is canceled, the call is abandoned. ToolHangs if too many were before."""
        stuck = threads().stuck[self.name]
        if stuck >= MAX_STUCK:
            raise ToolHangs(f"{self.name} is not called: {stuck} earlier calls still hang")
        if is_async(function):
            return await self._in_loop(function(*args, **kwargs))
        result = await self._in_thread(functools.partial(function, *args, **kwargs))
        return await self._in_loop(result) if inspect.isawaitable(result) else result

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        job = threads().submit(self.name, function)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            threads().abandon(job)
            if job.abandoned:
                logger.warning("a call of the tool %s hangs and is abandoned", self.name)
            raise

    async def _in_loop(self, awaitable: Awaitable[Any]) -> Any:
        thread = self._loop_thread()
        try:
            return await asyncio.wrap_future(thread.submit(awaitable))
        except asyncio.CancelledError:
            with self._lock:
                if self._blocked_since is None and self._thread is thread:
                    self._blocked_since = time.monotonic()
                    thread.loop.call_soon_threadsafe(self._not_blocked, thread)
            raise

    def _not_blocked(self, thread: LoopThread) -> None:
        with self._lock:
            if self._thread is thread:
                self._blocked_since = None

    def _loop_thread(self) -> LoopThread:
        """The tool's thread; a new one if a coroutine blocks the loop of the last."""
        with self._lock:
            blocked = self._blocked_since is not None and time.monotonic() - self._blocked_since > BLOCKED_SECONDS
            if blocked and self._thread is not None:
                logger.warning("a coroutine of the tool %s blocks its event loop; starting another", self.name)
                threads().count_stuck(self.name, 1)
                self._thread.loop.call_soon_threadsafe(self._unstick, self._thread)
                self._thread = None
            if self._thread is None:
                self._thread, self._blocked_since = LoopThread(f"tool-{self.name}"), None
            return self._thread

    def _unstick(self, thread: LoopThread) -> None:
        threads().count_stuck(self.name, -1)
        thread.loop.stop()


async def call_async(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call an agent's or a simulated user's function: a coroutine on this event loop, whose samplers it awaits, and
    anything else in a thread."""
    if is_async(function):
        return await function(*args, **kwargs)
    call = functools.partial(function, *args, **kwargs)
    result = await asyncio.get_running_loop().run_in_executor(_executor(), call)
    return await result if inspect.isawaitable(result) else result


@functools.cache
def _executor() -> ThreadPoolExecutor:
    """asyncio's own has cpu + 4 threads, so that a few waiting functions would block all others."""
    return ThreadPoolExecutor(256, thread_name_prefix="agent")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine, also of an object with an async __call__."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:  # would end the event loop
        raise _raisable(error) from error


def _raisable(error: BaseException) -> Exception:
    """An error that a future can hold: not StopIteration, and none that ends the process."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
