"""Saving: a checkpoint that is written while training goes on, one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from burnish.errors import UserError


class Saving:
    """The thread that writes. Whoever saves next, or ends the run, waits for it and hears of its failure."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Write beside what follows, once the one before is done."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), name="burnish-save")
        self._thread.start()

    def wait(self) -> None:
        """Until it is written; raises what went wrong."""
        self._join()
        error, self._error = self._error, None
        if isinstance(error, UserError):
            raise error
        if error is not None:
            raise RuntimeError("a checkpoint could not be written in the background") from error

    def close(self) -> None:
        """Let it end. The run is over, perhaps by another error: this one is only told."""
        self._join()
        if self._error is not None:
            logging.getLogger("burnish").error("a checkpoint could not be written: %s", self._error)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # told by the next wait
            self._error = error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
