"""WorkerClock: when a worker process was busy, in the phases of a step, for the timeline of `burnish view`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from burnish.log.clock import Clock
from burnish.log.timeline import Span

# Methods of roles -> the phase of the clock in which the main process waits for them.
PHASES = {
    ("policy", "compute_log_probs"): "old_log_prob",
    ("policy", "compute_exact_kl"): "old_log_prob",
    ("policy", "update"): "update_actor",
    ("reference", "compute_log_probs"): "ref",
    ("critic", "compute_values"): "values",
    ("critic", "update"): "update_critic",
    ("reward_model", "compute_scores"): "reward_model",
}


class WorkerClock:
    """Collects spans until they are taken. Any thread may call it."""

    def __init__(self) -> None:
        self.phase = Clock()
        self._lock = threading.Lock()
        self._num_generating = 0
        self._generation: AbstractContextManager[None] = nullcontext()

    def of_call(self, role: str, method: str) -> AbstractContextManager[None]:
        """The phase of a method of a role; nothing for a method that has none."""
        phase = PHASES.get((role, method))
        return nullcontext() if phase is None else self.phase(phase)

    def generating(self, futures: Sequence[Future[Any]]) -> None:
        """The engine generates until these futures are done, and others that it still has."""
        with self._lock:
            if self._num_generating == 0 and futures:
                self._generation = self.phase("gen")
                self._generation.__enter__()
            self._num_generating += len(futures)
        for future in futures:
            future.add_done_callback(self._generated)

    def _generated(self, future: Future[Any]) -> None:
        with self._lock:
            self._num_generating -= 1
            if self._num_generating == 0:
                self._generation.__exit__(None, None, None)

    def take(self) -> list[Span]:
        """Spans that ended since the last call."""
        self.phase.take()  # the seconds of phases, which nobody reads here
        return self.phase.take_spans()
