"""BatchScorer: one call of the reward function for all responses of a round, made when the last one is there."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError

from burnish.errors import UserError
from burnish.reward.evaluate import pack, pack_batch
from burnish.reward.process import Job, checked
from burnish.reward.sample import INVALID, Outcome, Sample, Score
from burnish.reward.score import Scorer, cannot_travel


class BatchScorer(Scorer):
    """Collects the samples that were announced by `expect`. A sample that nobody announced is a batch of its own."""

    _expected = 0
    _waiting: tuple[Job, ...] = ()

    def begin(self) -> None:
        with self._lock:
            self._expected, self._waiting = 0, ()

    def expect(self, count: int) -> None:
        with self._lock:
            self._expected += count

    def submit(self, sample: Sample) -> Future[Score]:
        job = Job(sample, b"", Future())
        try:
            pack(sample)  # one that cannot travel must not take the others with it
        except Exception as error:  # an object in extra_info that cannot be pickled raises what it likes
            job.future.set_exception(cannot_travel(sample, error))
            self._arrived()
            return job.future
        self._arrived(job)
        return job.future

    def _arrived(self, *jobs: Job) -> None:
        with self._lock:
            self._waiting += jobs
            self._expected -= 1
            if self._expected > 0:
                return
            batch, self._expected, self._waiting = self._waiting, 0, ()
        parts = tuple(job for job in batch if job.future.set_running_or_notify_cancel())
        if parts:
            self._send(Job(parts[0].sample, pack_batch([job.sample for job in parts]), Future(), parts=parts))

    def _send(self, whole: Job) -> None:
        whole.future.add_done_callback(lambda done: _give_up(whole, done))
        try:
            self._pool.put(whole)
        except (UserError, RuntimeError) as error:  # closed, or broken
            whole.future.set_exception(error)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        for part, its_own in zip(job.parts, _outcomes(job, outcome), strict=True):
            super()._finish(part, its_own)
        if not job.future.done():
            job.future.set_result(None)


def _outcomes(job: Job, outcome: Outcome) -> list[Outcome]:
    """One for each part; what went wrong with the call went wrong with all of them."""
    if outcome.kind is not None:
        return [outcome] * job.count
    try:
        found = [checked(Outcome(*fields)) for fields in outcome.extras["outcomes"]]
    except (KeyError, TypeError, ValueError):
        found = []
    if len(found) != job.count:  # the worker counts them; this one has been tampered with
        return [Outcome(kind=INVALID, text=f"gave {len(found)} scores for {job.count} responses")] * job.count
    return [found[0]._replace(printed=outcome.printed), *found[1:]]


def _give_up(whole: Job, done: Future) -> None:
    """A batch that was cancelled or broke takes its parts with it."""
    closed = RuntimeError("the scorer was closed before this sample was scored")
    problem = closed if done.cancelled() else done.exception()
    for part in whole.parts if problem is not None else ():
        with contextlib.suppress(InvalidStateError):
            part.future.set_exception(problem)
