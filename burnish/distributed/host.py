"""Host: what runs in a worker process. It builds one object and does what the controller asks of it.

Calls are done one after the other, in the order in which they came, by the main thread; methods that the object names
in `concurrent` are done beside them. A method may return a Future instead of a value.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import socket
import sys
import tempfile
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Client
from queue import SimpleQueue
from typing import Any

from burnish.distributed.channel import Answer, Call, Line

SECRET = "BURNISH_CLUSTER_SECRET"
BUILD, CLOSE, MEETING = "burnish: build", "burnish: close", "burnish: where to meet"
STACKS = "burnish: stacks"


@dataclass(frozen=True)
class RankInfo:
    """Which process this is among those of a group, and where they meet."""

    rank: int
    size: int
    local_rank: int
    address: str  # host:port of the group's rendezvous
    timeout: float = 600.0  # seconds that a collective may take

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size}"


def serve(address: tuple[str, int], secret: bytes, name: str) -> None:
    """Connect to the controller and work for it until it closes the line."""
    line = Line(Client(address, authkey=secret))
    line.send(name)
    Host(line).run()


class Host:
    """The worker's end of the line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.thing: Any = None
        self._busy = "nothing"  # what the main thread does
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._beside = ThreadPoolExecutor(4, thread_name_prefix="burnish-host")

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True, name="burnish-line").start()
        try:
            while (call := self._calls.get()) is not None:
                self._busy = call.method
                self._do(call)
                self._busy = "nothing"
        finally:
            close = getattr(self.thing, "close", None)
            if close is not None:
                close()
            self._beside.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> None:
        """A controller that is gone ends the worker, also one that hangs in a collective."""
        try:
            while True:
                call: Call = self.line.receive()
                if call.method == CLOSE:
                    self._calls.put(None)
                elif call.method == STACKS:  # answered here: the main thread may be what hangs
                    self._answer(Answer(call.number, self._stacks()))
                elif call.method in getattr(self.thing, "concurrent", ()):
                    self._beside.submit(self._do, call)
                else:
                    self._calls.put(call)
        except (EOFError, OSError):
            os._exit(1)

    def _stacks(self) -> str:
        """What every thread is doing."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return f"busy with {self._busy}\n{file.read()}"

    def _do(self, call: Call) -> None:
        try:
            if call.method == BUILD:
                self.thing = resolve(call.args[0])(*call.args[1:], **call.kwargs)
                value = None
            elif call.method == MEETING:
                value = free_address(self.line)
            else:
                value = getattr(self.thing, call.method)(*call.args, **call.kwargs)
        except BaseException as error:
            self._answer(_failure(call.number, error))
            return
        if isinstance(value, Future):
            value.add_done_callback(lambda done: self._answer(_settled(call.number, done)))
        else:
            self._answer(Answer(call.number, value))

    def _answer(self, answer: Answer) -> None:
        try:
            self.line.send(answer)
        except (OSError, ValueError):
            return  # the controller is gone, and `_listen` knows
        except Exception as error:  # what cannot be pickled is told, not lost
            self.line.send(_failure(answer.number, TypeError(f"cannot be sent: {error}")))


def _settled(number: int, done: Future[Any]) -> Answer:
    error = done.exception()
    return Answer(number, done.result()) if error is None else _failure(number, error)


def _failure(number: int, error: BaseException) -> Answer:
    told = "".join(traceback.format_exception(error))
    return Answer(number, error=_sendable(error), traceback=told)


def _sendable(error: BaseException) -> BaseException:
    """The error itself where it survives the way, else its words."""
    from burnish.distributed.channel import pack

    error.__traceback__ = None
    with contextlib.suppress(Exception):
        pack(error)
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def free_address(line: Line) -> str:
    """host:port at which other workers can reach this one: the address by which it reached the controller."""
    with socket.socket(fileno=os.dup(line.connection.fileno())) as own:
        host = own.getsockname()[0]
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def resolve(path: str) -> Any:
    """ "module:name" -> the thing."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """python -m burnish.distributed.host HOST PORT NAME, with the secret in the environment."""
    host, port, name = sys.argv[1:]
    serve((host, int(port)), bytes.fromhex(os.environ.pop(SECRET)), name)


if __name__ == "__main__":
    main()
