"""Who runs the engine: a thread of its own, or the caller's.

A thread of its own is the rule: requests may arrive while others run. On a CPU the training loop drives the engine from
its own thread instead: two threads that both compute in parallel have two pools of helpers, more than there are cores,
and the helpers then sleep between any two products instead of waiting for the next. That costs more than it brings.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Worker(Protocol):
    """`do` runs a piece of work between two tokens and returns its result; `post` does not wait for it."""

    def do(self, work: Callable[[], Any]) -> Any: ...

    def post(self, work: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class CallersThread:
    """Work is done at once, by whoever asks, one at a time; somebody must call the engine's `turn`."""

    def __init__(self) -> None:
        self.open = True
        self._one_at_a_time = threading.RLock()

    def do(self, work: Callable[[], Any]) -> Any:
        with self._one_at_a_time:
            if not self.open:
                raise RuntimeError("the engine is closed")
            return work()

    post = do

    def close(self) -> None:
        with self._one_at_a_time:  # a turn that another thread takes comes to its end
            self.open = False


class DrivenFuture(Future):
    """Waiting for its result drives the engine, so that nobody waits for ever on an engine that nobody drives."""

    def __init__(self, turn: Callable[[], bool]) -> None:
        super().__init__()
        self._step = turn

    def result(self, timeout: float | None = None) -> Any:
        while not self.done() and self._step():
            pass
        return super().result(timeout)


class OwnThread:
    """Takes turns while there is something to do, and what was posted between two of them."""

    def __init__(self, is_idle: Callable[[], bool], turn: Callable[[], None]) -> None:
        self._is_idle = is_idle
        self._step = turn
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="burnish-engine", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Any]) -> Any:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)

        self.post(run)
        return answer.result()

    def post(self, work: Callable[[], None]) -> None:
        if not self._thread.is_alive():
            raise RuntimeError("the engine is closed")
        self._inbox.put(work)

    def close(self) -> None:
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()
        while not self._inbox.empty():  # what came while the thread ended: nobody must wait for it
            if (work := self._inbox.get()) is not None:
                work()

    def _live(self) -> None:
        while True:
            try:
                work = self._inbox.get(block=self._is_idle())
            except queue.Empty:
                self._step()
                continue
            if work is None:
                return
            work()
