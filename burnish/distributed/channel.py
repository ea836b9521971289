"""Channel: calls and answers between the controller and one worker process, over an authenticated socket.

What is sent is pickled, so a peer must know the run's secret before the first byte is read.
"""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle


@dataclass(frozen=True)
class Call:
    """Do this and answer under this number."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of a call: a value, or an error with the traceback of where it happened."""

    number: int
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""


class Line:
    """One end of a connection. Any thread may send, one thread receives."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        self.send_packed(pack(message))

    def send_packed(self, message: bytes) -> None:
        with self._sending:
            self.connection.send_bytes(message)

    def receive(self) -> Any:
        """The next message; EOFError or OSError when the other end is gone."""
        return pickle.loads(self.connection.recv_bytes())

    def close(self) -> None:
        self.connection.close()


def pack(message: Any) -> bytes:
    """Functions and classes of the user's own script travel too."""
    return cloudpickle.dumps(message)


class Pending:
    """Calls that wait for their answers, of one line."""

    def __init__(self) -> None:
        self._futures: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.ended: BaseException | None = None  # why nothing will come any more

    def expect(self, number: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self.ended is not None:
                future.set_exception(self.ended)
            else:
                self._futures[number] = future
        return future

    def settle(self, answer: Answer) -> None:
        with self._lock:
            future = self._futures.pop(answer.number, None)
        if future is None:
            return
        if answer.error is None:
            future.set_result(answer.value)
        else:
            answer.error.add_note(answer.traceback)
            future.set_exception(answer.error)

    def fail(self, error: BaseException) -> None:
        """Nothing will come any more."""
        with self._lock:
            self.ended = error
            futures, self._futures = list(self._futures.values()), {}
        for future in futures:
            future.set_exception(error)
