"""InlinePool: the pool for `reward.num_workers=0`. The function runs in a thread of this process, without limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from burnish.reward.evaluate import Evaluator, Setup
from burnish.reward.process import Job
from burnish.reward.sample import Outcome
from burnish.reward.settings import RewardSettings
from burnish.reward.source import RewardSource


class InlinePool:
    """Same interface as WorkerPool. For debugging, and for functions that need objects of this process."""

    def __init__(self, source: RewardSource, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self.notices: list[str] = []
        setup = Setup(source, dict(settings.reward_kwargs), settings.timeout, memory_mb=0, withheld=[])
        # No seeding: Python's global generator belongs to the whole process.
        self._evaluator = Evaluator(setup, before_each=lambda seed_key: None)
        self.inputs = self._evaluator.inputs
        self._finish = finish
        self._lock = threading.Lock()  # guards _closing against a concurrent put
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="burnish-reward")

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._closing:
                raise RuntimeError("the scorer is closed")
            self._thread.submit(self._run, job)

    def _run(self, job: Job) -> None:
        if self._closing:
            job.future.cancel()
        elif job.future.set_running_or_notify_cancel():
            self._finish(job, self._evaluator.evaluate(job.payload))

    def close(self) -> None:
        """Cancel jobs that have not started, and wait for the running one."""
        with self._lock:
            self._closing = True
        self._thread.shutdown()
        self._evaluator.loop.close()
