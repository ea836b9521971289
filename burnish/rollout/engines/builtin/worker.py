"""Which thread runs the engine: its own, or the caller's.

By default the engine has a thread of its own, so that requests can arrive while others run. On a CPU the training loop
drives the engine from its own thread instead: two threads that both compute in parallel have two OpenMP pools, more
workers than cores, and the workers then sleep between products instead of spinning, which costs more than it gains.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Worker(Protocol):
    """`do` runs a function between two steps and returns its result; `post` does not wait for it."""

    def do(self, work: Callable[[], Any]) -> Any: ...

    def post(self, work: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class CallerThread:
    """Functions run at once, in the caller's thread, one at a time; somebody must call the engine's `step`."""

    def __init__(self) -> None:
        self.open = True
        self._lock = threading.RLock()

    def do(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            if not self.open:
                raise RuntimeError("the engine is closed")
            return work()

    post = do

    def close(self) -> None:
        with self._lock:  # waits for a step in another thread
            self.open = False


class DrivenFuture(Future):
    """Waiting for its result drives the engine, so that `result` cannot block on an engine that nobody steps."""

    def __init__(self, step: Callable[[], bool]) -> None:
        super().__init__()
        self._step = step

    def result(self, timeout: float | None = None) -> Any:
        while not self.done() and self._step():
            pass
        return super().result(timeout)


class EngineThread:
    """Steps while there is something to do, and runs posted functions between two steps."""

    def __init__(self, is_idle: Callable[[], bool], step: Callable[[], None]) -> None:
        self._is_idle = is_idle
        self._step = step
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="burnish-engine", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Any]) -> Any:
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        self.post(run)
        return result.result()

    def post(self, work: Callable[[], None]) -> None:
        if not self._thread.is_alive():
            raise RuntimeError("the engine is closed")
        self._inbox.put(work)

    def close(self) -> None:
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()
        while not self._inbox.empty():  # posted while the thread ended; its callers must not wait forever
            if (work := self._inbox.get()) is not None:
                work()

    def _run(self) -> None:
        while True:
            try:
                work = self._inbox.get(block=self._is_idle())
            except queue.Empty:
                self._step()
                continue
            if work is None:
                return
            work()
