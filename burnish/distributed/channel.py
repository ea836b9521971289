"""Calls and results between the controller and one worker process, over an authenticated connection.

Messages are pickled, so both sides prove that they know the run's secret (handshake.py) before the first is sent.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import cloudpickle


class NoResult(Enum):
    """What a worker returns where another rank has the result of a call that all ranks run."""

    NO_RESULT = "no result"


NO_RESULT = NoResult.NO_RESULT


@dataclass(frozen=True)
class Call:
    """A method to run. Its result is sent back under `id`.

    With `num_results`, the method returns that many futures, and the result of each is sent as soon as it is there,
    under the ids from `id` on.
    """

    id: int
    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    num_results: int | None = None
    shared: Any = None  # data that the method gets as `shared`, pickled or as Ray stores it

    @property
    def ids(self) -> range:
        return range(self.id, self.id + (1 if self.num_results is None else self.num_results))


@dataclass(frozen=True)
class Result:
    """The value of a call, or the error it raised with its traceback as text."""

    id: int
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""


class Messages(Protocol):
    """A connection that carries whole messages: multiprocessing's, or handshake.SignedConnection."""

    def send_bytes(self, message: bytes, /) -> None: ...

    def recv_bytes(self) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Channel:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: Messages) -> None:
        self.connection = connection
        self._send_lock = threading.Lock()

    def send(self, message: Any) -> None:
        self.send_bytes(serialize(message))

    def send_bytes(self, message: bytes) -> None:
        with self._send_lock:
            self.connection.send_bytes(message)

    def receive(self) -> Any:
        """The next message; EOFError or OSError when the other end has closed."""
        return pickle.loads(self.connection.recv_bytes())

    def reserve_address(self) -> str:
        """Where other workers can reach a store of this process: on the interface of this connection."""
        from burnish.distributed.rendezvous import reserve_address

        return reserve_address(self.connection.fileno())

    def close(self) -> None:
        self.connection.close()


def serialize(message: Any) -> bytes:
    """By cloudpickle: functions and classes of the user's script are included."""
    return cloudpickle.dumps(message)


class PendingCalls:
    """Futures of calls whose results one worker has not sent yet."""

    def __init__(self) -> None:
        self._futures: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.error: BaseException | None = None  # why no more results will come

    def add(self, ids: Iterable[int]) -> list[Future[Any]]:
        futures: dict[int, Future[Any]] = {id: Future() for id in ids}
        for future in futures.values():
            future.set_running_or_notify_cancel()  # a call that was sent cannot be canceled
        with self._lock:
            if self.error is None:
                self._futures |= futures
                return list(futures.values())
        for future in futures.values():
            future.set_exception(self.error)
        return list(futures.values())

    def resolve(self, result: Result) -> None:
        with self._lock:
            future = self._futures.pop(result.id, None)
        if future is None:
            return
        if result.error is None:
            future.set_result(result.value)
        else:
            result.error.add_note(result.traceback)
            future.set_exception(result.error)

    def fail_all(self, error: BaseException) -> None:
        """No more results will come."""
        with self._lock:
            self.error = error
            futures, self._futures = list(self._futures.values()), {}
        for future in futures:
            future.set_exception(error)
