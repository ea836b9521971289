"""What runs in a worker process: it builds one object and runs the methods that the controller calls.

The main thread runs calls one after the other, in the order in which they came; methods that the object lists in
`concurrent` run beside them on other threads. A method may return a Future instead of a value.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import sys
import tempfile
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from burnish.distributed.channel import Call, Channel, Messages, Result, serialize
from burnish.distributed.handshake import connect, is_local
from burnish.escape import escape_output
from burnish.network import prefer_loopback

# Calls to the host itself.
BUILD, CLOSE, RENDEZVOUS, STACKS = "burnish: build", "burnish: close", "burnish: rendezvous", "burnish: stacks"


def serve(address: str, rank: int, connection: Messages | None = None) -> None:
    """Connect to the controller, unless that is done, and run its calls until it closes the connection."""
    if is_local(address):
        prefer_loopback()
    Host(Channel(connect(address, rank) if connection is None else connection)).run()


class HostChannel(Protocol):
    """What brings calls in the order in which they were sent, and takes their results."""

    def receive(self) -> Any:
        """The next call; EOFError or OSError when the controller is gone."""
        ...

    def send(self, message: Any) -> None: ...

    def reserve_address(self) -> str:
        """Where other workers can reach a store of this process."""
        ...


class Host:
    """The worker's end of the channel, and the object whose methods are called."""

    def __init__(self, channel: HostChannel) -> None:
        self.channel = channel
        self.target: Any = None
        self._current = "nothing"  # the method that the main thread runs
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="burnish-host")

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True, name="burnish-channel").start()
        try:
            while (call := self._calls.get()) is not None:
                self._current = call.method
                self._run_call(call)
                self._current = "nothing"
        finally:
            close = getattr(self.target, "close", None)
            if close is not None:
                close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> None:
        """Ends the process when the controller is gone, even if the main thread hangs in a collective."""
        try:
            while True:
                call: Call = self.channel.receive()
                if call.method == CLOSE:
                    self._calls.put(None)
                elif call.method == STACKS:  # not queued: the main thread may be what hangs
                    self._send(Result(call.id, self._stacks()))
                elif call.method in getattr(self.target, "concurrent", ()):
                    self._executor.submit(self._run_call, call)
                else:
                    self._calls.put(call)
        except (EOFError, OSError):
            os._exit(1)

    def _stacks(self) -> str:
        """Stack traces of all threads."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return f"runs {self._current}\n{file.read()}"

    def _run_call(self, call: Call) -> None:
        try:
            value = self._value(call)
        except BaseException as error:
            for id in call.ids:
                self._send(_failure(id, error))
            return
        futures = value if call.num_results is not None else [value]
        for id, future in zip(call.ids, futures, strict=True):
            if isinstance(future, Future):
                future.add_done_callback(partial(self._send_future, id))
            else:
                self._send(Result(id, future))

    def _value(self, call: Call) -> Any:
        kwargs = call.kwargs or {}
        if call.shared is not None:
            kwargs = {**kwargs, "shared": pickle.loads(call.shared) if isinstance(call.shared, bytes) else call.shared}
        if call.method == BUILD:
            factory, *args = call.args
            self.target = import_object(factory)(*args, **kwargs)
            return None
        if call.method == RENDEZVOUS:
            return self.channel.reserve_address()
        return getattr(self.target, call.method)(*call.args, **kwargs)

    def _send_future(self, id: int, future: Future[Any]) -> None:
        error = future.exception()
        self._send(Result(id, future.result()) if error is None else _failure(id, error))

    def _send(self, result: Result) -> None:
        try:
            self.channel.send(result)
        except (OSError, ValueError):
            return  # the controller is gone; `_listen` notices
        except Exception as error:  # a value that cannot be pickled
            self.channel.send(_failure(result.id, TypeError(f"cannot be sent: {error}")))


def _failure(id: int, error: BaseException) -> Result:
    text = "".join(traceback.format_exception(error))
    return Result(id, error=_picklable(error), traceback=text)


def _picklable(error: BaseException) -> BaseException:
    """The error itself where it can be pickled, else a RuntimeError with its message."""
    error.__traceback__ = None
    with contextlib.suppress(Exception):
        serialize(error)
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def import_object(path: str) -> Any:
    """The object named "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """python -m burnish.distributed.host ADDRESS RANK"""
    escape_output()
    address, rank = sys.argv[1:]
    serve(address, int(rank))


if __name__ == "__main__":
    main()
