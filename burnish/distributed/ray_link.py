"""RayLink: the controller's end of one HostActor. What comes back is handled by one thread per group, not by Ray's."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from burnish.distributed.channel import Call, Result, serialize


class RayEvents:
    """A thread that runs callbacks in the order in which they came."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="burnish-ray").start()

    def put(self, callback: Callable[[], None]) -> None:
        self._queue.put(callback)

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            callback()


class RayLink:
    """Calls to one actor. `resolve` gets its results, `fail` why there will be no more."""

    def __init__(
        self, actor: Any, events: RayEvents, resolve: Callable[[Result], None], fail: Callable[[BaseException], None]
    ) -> None:
        self.actor = actor
        self._events = events
        self._resolve = resolve
        self._fail = fail
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._listen()

    def send(self, call: Call, message: bytes | None = None) -> None:
        """`message`: the call, where it is serialized already. Shared data goes beside it, by reference."""
        if message is None:
            message = serialize(Call(call.id, call.method, call.args, call.kwargs, call.num_results))
        with self._lock:
            answer = self.actor.call.remote(next(self._numbers), message, call.shared)
        self._when_done(answer, self._answered)

    def close(self) -> None:
        """The actor is ended by its starter."""

    def _listen(self) -> None:
        """Wait for streamed results. An actor that dies is noticed by this, even if nobody calls it."""
        self._when_done(self.actor.streamed.remote(), self._received)

    def _when_done(self, answer: Any, callback: Callable[[Any], None]) -> None:
        answer.future().add_done_callback(lambda future: self._events.put(partial(self._handle, future, callback)))

    def _handle(self, future: Any, callback: Callable[[Any], None]) -> None:
        error = future.exception()
        if error is None:
            callback(future.result())
        else:
            self._fail(error)

    def _answered(self, message: bytes | None) -> None:
        if message is not None:
            self._resolve(pickle.loads(message))

    def _received(self, messages: list[bytes]) -> None:
        for message in messages:
            self._resolve(pickle.loads(message))
        self._listen()
