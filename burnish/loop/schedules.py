"""Schedules: how generation and updates follow one another.

- sync: generate a batch, then update on it.
- one_step_off: batch k+1 is generated with the weights after step k-1 while step k trains; then both pause and the
  engine receives the weights after step k. Which weights sample which batch depends on the step alone, never on time.
- queue: a producer thread runs ahead by at most `queue_size` batches, and never so far that a batch would be more than
  `staleness_threshold` weight syncs old when it is trained on. Which weights it meets depends on timing.

The sampler is touched by the producer while it generates, and by the loop only while it does not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from burnish.batch import Batch
from burnish.loop.learner import Learner
from burnish.loop.rollout import Rollout
from burnish.loop.step import ScoredBatch, StepResult, is_current, learn, learn_and_sync, produce, sync_weights
from burnish.registry import Registry
from burnish.rollout.trajectory import is_sampled

if TYPE_CHECKING:
    from burnish.config.trainer import AsyncTrainingConfig

ASYNC_MODES = Registry("schedule of generation and updates", key="async_training.mode")


@dataclass(frozen=True)
class Position:
    """What a checkpoint needs: batches that were generated ahead, and the sampler's state after them."""

    pending: Sequence[ScoredBatch]
    sampler: dict[str, Any]


class Schedule(Protocol):
    """Runs produce and learn."""

    def step(self, step: int) -> StepResult:
        """Run step number `step`."""
        ...

    def exhausted(self) -> bool:
        """Whether there is nothing more to train on, because the data is used up."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Inside, nothing is generated and the engine has the policy's weights."""
        ...

    def position(self) -> Position: ...

    def load(self, pending: Sequence[ScoredBatch]) -> None:
        """Before the first step: batches that a checkpoint holds, to be trained on first."""
        ...

    def close(self) -> None: ...


@ASYNC_MODES.register("sync")
class SyncSchedule:
    """Generate a batch, then update on it."""

    def __init__(self, rollout: Rollout, learner: Learner, total_steps: int, config: AsyncTrainingConfig) -> None:
        self.rollout = rollout
        self.learner = learner
        self.pending: deque[ScoredBatch] = deque()  # left by an asynchronous run that was resumed as this one

    def step(self, step: int) -> StepResult:
        scored = self.pending.popleft() if self.pending else produce(self.rollout, step)
        return learn_and_sync(self.rollout, self.learner, scored)

    def exhausted(self) -> bool:
        return self.rollout.exhausted and not self.pending

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def position(self) -> Position:
        return Position(list(self.pending), self.rollout.training_data()[1].state_dict())

    def load(self, pending: Sequence[ScoredBatch]) -> None:
        self.pending.extend(pending)

    def close(self) -> None:
        """No thread to stop."""


@dataclass(frozen=True)
class StalenessLimits:
    """How far generation may run ahead. Steps and batches are numbered alike."""

    sync_interval: int = 1  # steps between two weight syncs
    max_staleness: int = 1  # batches that may start beyond those the engine's current weights are intended for
    queue_size: int | None = 1  # batches ahead of the one that trains; None: no limit of its own
    lockstep: bool = False  # weights wait until every batch that may start with the old ones is finished
    partial: bool = False  # weights do not wait for running responses

    def may_start(self, batch: int, current_step: int, synced_step: int) -> bool:
        """Whether generation of `batch` may start while `current_step` trains and the engine holds the weights after
        `synced_step`."""
        next_sync = (synced_step // self.sync_interval + 1) * self.sync_interval
        if self.queue_size is not None and batch > current_step + self.queue_size:
            return False
        return batch <= next_sync + self.max_staleness


class AsyncSchedule:
    """A producer thread, and the queue between it and the loop. `changed` guards everything that both touch."""

    def __init__(self, rollout: Rollout, learner: Learner, total_steps: int, limits: StalenessLimits) -> None:
        self.rollout = rollout
        self.learner = learner
        self.total_steps = total_steps
        self.limits = limits
        self.pending: deque[ScoredBatch] = deque()
        self.producing: int | None = None  # the batch that is being generated
        self.current_step = 0  # the step that trains, or trained last
        self.synced_step = 0  # the engine holds the weights after this step
        self.next_batch = 1  # the batch to start next
        self.held = self.closed = False
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self._sampler_state: dict[str, Any] = {}  # before the batch that is being generated
        self._thread: threading.Thread | None = None

    # the loop's side

    def step(self, step: int) -> StepResult:
        self._start(step)
        depth, scored = self._take()
        metrics = self._staleness(scored.batch) | ({} if self.limits.lockstep else {"async/queue_depth": depth})
        result = learn(self.learner, scored, current=is_current(self.rollout, self.learner, scored.batch))
        if self.limits.lockstep:
            self._wait(lambda: self.producing is None and not self._may_start())
        if scored.step % self.limits.sync_interval == 0:
            self._sync_between_batches()
        return result._replace(metrics=result.metrics | metrics)

    def exhausted(self) -> bool:
        with self.changed:
            return self.producing is None and not self.pending and self.rollout.exhausted

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self.changed:
            self.held = True
        try:
            self._wait(lambda: self.producing is None)
            self._sync()
            yield
        finally:
            with self.changed:
                self.held = False
                self.changed.notify_all()

    def position(self) -> Position:
        """A batch that is being generated is generated again: its prompts count as not drawn."""
        with self.changed:
            state = self.rollout.training_data()[1].state_dict() if self.producing is None else self._sampler_state
            return Position(list(self.pending), state)

    def load(self, pending: Sequence[ScoredBatch]) -> None:
        self.pending.extend(pending)

    def close(self) -> None:
        """Stop the producer. Engine and scorer are closed before, so that it waits for neither."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self, step: int) -> None:
        if self._thread is not None:
            return
        self.current_step = self.synced_step = step - 1
        self.next_batch = step + len(self.pending)
        self._thread = threading.Thread(target=self._produce_all, name="burnish-producer", daemon=True)
        self._thread.start()

    def _take(self) -> tuple[float, ScoredBatch]:
        """The next batch, and how many were ready when it was needed."""
        with self.changed:
            depth = float(len(self.pending))
        self._wait(lambda: bool(self.pending))
        with self.changed:
            scored = self.pending.popleft()
            self.current_step = scored.step
            self.changed.notify_all()
        return depth, scored

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition; raises the producer's error."""
        with self.rollout.clock("wait_for_batch"), self.changed:
            self.changed.wait_for(lambda: self.error is not None or ready())
            if self.error is not None:
                raise self.error

    def _sync_between_batches(self) -> None:
        """Weight sync between two batches, or with `partial` in the middle of running responses."""
        with self.rollout.clock("update_weights"):
            if not self.limits.partial:
                with self.paused():
                    return
            self.rollout.engine.pause()
            try:
                self._sync()
            finally:
                self.rollout.engine.resume()

    def _sync(self) -> None:
        if self.learner.num_unsynced:  # zero where only the critic was updated
            sync_weights(self.rollout, self.learner)
        with self.changed:
            self.synced_step = self.current_step
            self.changed.notify_all()

    def _staleness(self, batch: Batch) -> dict[str, float]:
        """How many weight syncs lie between sampling a token and training on it."""
        lag = (self.rollout.version - batch["weight_version"].flat[is_sampled(batch)]).float()
        if not len(lag):
            return {}
        return {"async/version_lag/mean": float(lag.mean()), "async/version_lag/max": float(lag.max())}

    # the producer's side

    def _produce_all(self) -> None:
        try:
            while self._begin():
                scored = produce(self.rollout, self.next_batch)
                with self.changed:
                    self.pending.append(scored)
                    self.producing, self.next_batch = None, self.next_batch + 1
                    self.changed.notify_all()
        except BaseException as error:  # raised by whoever waits for a batch
            with self.changed:
                self.producing, self.error = None, error
                self.changed.notify_all()

    def _begin(self) -> bool:
        """Wait until the next batch may start; False if there is none."""
        with self.rollout.clock("wait_for_room"), self.changed:
            self.changed.wait_for(lambda: self.closed or not self._has_more() or self._may_start())
            if self.closed or not self._has_more():
                return False
            self.producing, self._sampler_state = self.next_batch, self.rollout.training_data()[1].state_dict()
            return True

    def _has_more(self) -> bool:
        return self.next_batch <= self.total_steps and not self.rollout.exhausted

    def _may_start(self) -> bool:
        allowed = self.limits.may_start(self.next_batch, self.current_step, self.synced_step)
        return not self.held and self._has_more() and allowed


@ASYNC_MODES.register("one_step_off")
class OneStepOffSchedule(AsyncSchedule):
    """One batch ahead, and a barrier between any two steps: the same numbers every time."""

    def __init__(self, rollout: Rollout, learner: Learner, total_steps: int, config: AsyncTrainingConfig) -> None:
        super().__init__(rollout, learner, total_steps, StalenessLimits(lockstep=True))


@ASYNC_MODES.register("queue")
class QueueSchedule(AsyncSchedule):
    """As far ahead as async_training allows."""

    def __init__(self, rollout: Rollout, learner: Learner, total_steps: int, config: AsyncTrainingConfig) -> None:
        interval = config.trigger_parameter_sync_step
        max_staleness = int(config.staleness_threshold * interval + 1e-9)
        limits = StalenessLimits(interval, max_staleness, config.queue_size, partial=config.partial_rollout)
        super().__init__(rollout, learner, total_steps, limits)
