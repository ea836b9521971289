"""Patience: a tracker is called in a thread of its own, and waited for only so long. The run does not hang with it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

# Seconds. A first contact may take long, and so may the last upload.
LIMITS = {"start": 180.0, "close": 300.0}
LIMIT = 30.0


class Patience:
    """One tracker and its thread. A call that takes too long is left alone; until it is over, others fail at once."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self._calls: SimpleQueue[tuple[Future[Any], str, tuple, dict]] = SimpleQueue()
        self._last: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    def call(self, method: str, *arguments: Any, **more: Any) -> Any:
        """What the method returns or raises; TimeoutError where it takes too long."""
        if self._last is not None and not self._last.done():
            raise TimeoutError("an earlier call is still on its way")
        if self._thread is None:  # a daemon: a tracker that never answers must not keep the process alive
            self._thread = threading.Thread(target=self._serve, name="burnish-tracker", daemon=True)
            self._thread.start()
        self._last = Future()
        self._calls.put((self._last, method, arguments, more))
        limit = LIMITS.get(method, LIMIT)
        try:
            return self._last.result(timeout=limit)
        except TimeoutError:
            if self._last.done():  # the tracker's own
                raise
            raise TimeoutError(f"no answer within {limit:g} s") from None

    def _serve(self) -> None:
        while True:
            future, method, arguments, more = self._calls.get()
            try:
                future.set_result(getattr(self.thing, method)(*arguments, **more))
            except BaseException as error:  # raised again in `call`, also a Ctrl-C
                future.set_exception(error)
