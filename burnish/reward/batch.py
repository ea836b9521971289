"""BatchScorer: calls the reward function once per round, when all announced samples have been submitted."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError

from burnish.errors import UserError
from burnish.reward.evaluate import pack, pack_batch
from burnish.reward.process import Job, validate_outcome
from burnish.reward.sample import INVALID, Outcome, Sample, Score
from burnish.reward.score import Scorer, unpicklable_sample


class BatchScorer(Scorer):
    """Collects the samples announced with `expect`. A sample that was not announced becomes a batch of one."""

    _expected = 0
    _pending: tuple[Job, ...] = ()

    def begin(self) -> None:
        with self._lock:
            self._expected, self._pending = 0, ()

    def expect(self, count: int) -> None:
        with self._lock:
            self._expected += count

    def withdraw(self) -> None:
        if self._expected > 0:
            self._add()

    def submit(self, sample: Sample) -> Future[Score]:
        job = Job(sample, b"", Future())
        try:
            pack(sample)  # a sample that cannot be pickled must not fail the others
        except Exception as error:  # objects in extra_info may raise anything when pickled
            job.future.set_exception(unpicklable_sample(sample, error))
            self._add()
            return job.future
        self._add(job)
        return job.future

    def _add(self, *jobs: Job) -> None:
        with self._lock:
            self._pending += jobs
            self._expected -= 1
            if self._expected > 0:
                return
            batch, self._expected, self._pending = self._pending, 0, ()
        parts = tuple(job for job in batch if job.future.set_running_or_notify_cancel())
        if parts:
            self._send(Job(parts[0].sample, pack_batch([job.sample for job in parts]), Future(), parts=parts))

    def _send(self, batch_job: Job) -> None:
        batch_job.future.add_done_callback(lambda done: _fail_parts(batch_job, done))
        try:
            self._pool.put(batch_job)
        except (UserError, RuntimeError) as error:  # closed, or broken
            batch_job.future.set_exception(error)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        for part, part_outcome in zip(job.parts, _outcomes(job, outcome), strict=True):
            super()._finish(part, part_outcome)
        if not job.future.done():
            job.future.set_result(None)


def _outcomes(job: Job, outcome: Outcome) -> list[Outcome]:
    """One outcome per part; if the call failed, its outcome for all of them."""
    if outcome.kind is not None:
        return [outcome] * job.count
    try:
        outcomes = [validate_outcome(Outcome(*fields)) for fields in outcome.extras["outcomes"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        outcomes = []
    if len(outcomes) != job.count:  # the worker checks the number, so this reply was tampered with
        return [Outcome(kind=INVALID, text=f"returned {len(outcomes)} scores for {job.count} responses")] * job.count
    return [outcomes[0]._replace(printed=outcome.printed), *outcomes[1:]]


def _fail_parts(batch_job: Job, done: Future) -> None:
    """Fail the parts of a batch that was cancelled or failed."""
    closed = RuntimeError("the scorer was closed before this sample was scored")
    problem = closed if done.cancelled() else done.exception()
    for part in batch_job.parts if problem is not None else ():
        with contextlib.suppress(InvalidStateError):
            part.future.set_exception(problem)
