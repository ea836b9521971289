"""TrackerThread: calls a tracker (such as wandb) in its own thread with a time limit, so that it cannot block a run."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

# Seconds. Connecting and the final upload may take long.
LIMITS = {"start": 180.0, "close": 300.0}
LIMIT = 30.0


class TrackerThread:
    """A tracker and its thread. A call that times out keeps running; until it returns, further calls fail at once."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self._calls: SimpleQueue[tuple[Future[Any], str, tuple, dict]] = SimpleQueue()
        self._last: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    def call(self, method: str, *arguments: Any, **kwargs: Any) -> Any:
        """Call a method of the tracker; TimeoutError if it takes too long."""
        if self._last is not None and not self._last.done():
            raise TimeoutError("an earlier call has not returned yet")
        if self._thread is None:  # a daemon, so that a hanging tracker cannot keep the process alive
            self._thread = threading.Thread(target=self._serve, name="burnish-tracker", daemon=True)
            self._thread.start()
        self._last = Future()
        self._calls.put((self._last, method, arguments, kwargs))
        limit = LIMITS.get(method, LIMIT)
        try:
            return self._last.result(timeout=limit)
        except TimeoutError:
            if self._last.done():  # raised by the tracker itself
                raise
            raise TimeoutError(f"no response within {limit:g} s") from None

    def _serve(self) -> None:
        while True:
            future, method, arguments, kwargs = self._calls.get()
            try:
                future.set_result(getattr(self.tracker, method)(*arguments, **kwargs))
            except BaseException as error:  # re-raised in `call`, including KeyboardInterrupt
                future.set_exception(error)
