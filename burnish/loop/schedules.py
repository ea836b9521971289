"""Generating ahead of learning: a thread produces batches into a queue, and the loop learns from them meanwhile.

The rooms are those of a step in turn (loop/step.py). What is decided here is how far ahead, and when the engine gets
new weights:

- one_step_off: batch k+1 is produced with the weights after step k-1 while step k is learnt; then both stand still and
  the engine gets the weights after step k. Which weights sample which batch depends on the step alone, never on time.
- queue: the producer runs ahead by at most `queue_size` batches, and never so far that a batch would be more than
  `staleness_threshold` weight transfers old when it is learnt. Which weights it meets is a matter of time.

The sampler is touched by the producer while it produces, and by the loop only while it does not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from burnish.batch import Batch
from burnish.loop.step import Produced, learn, learn_and_send, produce
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.loop.run import Run

ASYNC_MODES = Registry("way to generate and learn", key="async_training.mode")

Step = tuple[Batch, dict[str, float]]


@dataclass(frozen=True)
class Ahead:
    """What a checkpoint needs of it: batches that wait, and where in the data the one after them begins."""

    waiting: Sequence[Produced]
    position: dict[str, Any]


class Schedule(Protocol):
    """How producing and learning follow one another."""

    def step(self, run: Run) -> Step:
        """Make the next step: the batch that was learnt, and its numbers."""
        ...

    def at_end(self, run: Run) -> bool:
        """Is there nothing more to learn, because the data is used up?"""
        ...

    def paused(self, run: Run) -> AbstractContextManager[None]:
        """Nothing is produced meanwhile, and the engine has the policy's weights."""
        ...

    def ahead(self, run: Run) -> Ahead: ...

    def load(self, waiting: Sequence[Produced]) -> None:
        """Before the first step: these were produced by the run that saved them, and are learnt first."""
        ...

    def close(self) -> None: ...


@ASYNC_MODES.register("sync")
class SyncSchedule:
    """First produce, then learn."""

    def __init__(self, cfg: TrainConfig) -> None:
        self.waiting: deque[Produced] = deque()  # by a run that generated ahead, and was resumed as this one

    def step(self, run: Run) -> Step:
        waits = self.waiting.popleft() if self.waiting else None
        return learn_and_send(run, waits or produce(run, run.next_prompts(), run.step + 1))

    def at_end(self, run: Run) -> bool:
        return run.used_up and not self.waiting

    def paused(self, run: Run) -> AbstractContextManager[None]:
        return nullcontext()

    def ahead(self, run: Run) -> Ahead:
        return Ahead(list(self.waiting), run.sampler.state_dict())

    def load(self, waiting: Sequence[Produced]) -> None:
        self.waiting.extend(waiting)

    def close(self) -> None:
        """There is no thread to end."""


@dataclass(frozen=True)
class Bounds:
    """How far the producer may run ahead. Steps and batches are numbered alike."""

    sync_every: int = 1  # steps between two weight transfers
    beyond: int = 1  # batches that may be begun beyond the steps that the present weights are for
    queue_size: int | None = 1  # batches ahead of the one that is learnt; None leaves it to the others
    full: bool = False  # weights wait until all that may be produced with the old ones is there
    partial: bool = False  # weights do not wait for responses on their way

    def allow(self, number: int, learning: int, sent: int) -> bool:
        """May this batch be begun, while that step is learnt and the engine holds the weights after step `sent`?"""
        next_transfer = (sent // self.sync_every + 1) * self.sync_every
        if self.queue_size is not None and number > learning + self.queue_size:
            return False
        return number <= next_transfer + self.beyond


@ASYNC_MODES.register("one_step_off")
def one_step_off(cfg: TrainConfig) -> Overlap:
    """One batch ahead, and a halt between any two steps: the same numbers every time."""
    return Overlap(Bounds(full=True))


@ASYNC_MODES.register("queue")
def bounded_queue(cfg: TrainConfig) -> Overlap:
    """As far ahead as async_training allows."""
    asked = cfg.async_training
    beyond = int(asked.staleness_threshold * asked.trigger_parameter_sync_step + 1e-9)
    return Overlap(
        Bounds(asked.trigger_parameter_sync_step, beyond, asked.queue_size, partial=asked.partial_rollout),
    )


class Overlap:
    """A producer thread, and the queue between it and the loop. `changed` guards everything that both touch."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.waiting: deque[Produced] = deque()
        self.producing: int | None = None  # the batch on its way
        self.learning = 0  # the step that is learnt, or was learnt last
        self.sent = 0  # the engine holds the weights after this step
        self.next = 1  # the batch to be begun next
        self.held = self.closed = False
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self._begun_at: dict[str, Any] = {}  # the sampler's state before the batch on its way
        self._thread: threading.Thread | None = None

    # the loop's side

    def step(self, run: Run) -> Step:
        self._start(run)
        depth, produced = self._take(run)
        numbers = {**staleness(run, produced.batch), **({} if self.bounds.full else {"async/queue_depth": depth})}
        batch, metrics = learn(run, produced)
        if self.bounds.full:
            self._wait(run, lambda: self.producing is None and not self._may_begin(run))
        if produced.step % self.bounds.sync_every == 0:
            self._transfer(run)
        return batch, metrics | numbers

    def at_end(self, run: Run) -> bool:
        with self.changed:
            return self.producing is None and not self.waiting and run.used_up

    @contextmanager
    def paused(self, run: Run) -> Iterator[None]:
        with self.changed:
            self.held = True
        try:
            self._wait(run, lambda: self.producing is None)
            self._send(run)
            yield
        finally:
            with self.changed:
                self.held = False
                self.changed.notify_all()

    def ahead(self, run: Run) -> Ahead:
        """A batch on its way is asked for again: its prompts count as not drawn."""
        with self.changed:
            position = run.sampler.state_dict() if self.producing is None else self._begun_at
            return Ahead(list(self.waiting), position)

    def load(self, waiting: Sequence[Produced]) -> None:
        self.waiting.extend(waiting)

    def close(self) -> None:
        """Ends the producer. The engine and the scorer are closed before, so that it waits for neither."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self, run: Run) -> None:
        if self._thread is not None:
            return
        self.learning = self.sent = run.step
        self.next = run.step + len(self.waiting) + 1
        self._thread = threading.Thread(target=self._produce_all, args=(run,), name="burnish-producer", daemon=True)
        self._thread.start()

    def _take(self, run: Run) -> tuple[float, Produced]:
        """The next batch, and how many were there when it was asked for."""
        with self.changed:
            depth = float(len(self.waiting))
        self._wait(run, lambda: bool(self.waiting))
        with self.changed:
            produced = self.waiting.popleft()
            self.learning = produced.step
            self.changed.notify_all()
        return depth, produced

    def _wait(self, run: Run, ready: Callable[[], bool]) -> None:
        """Until it is so; raises what went wrong in the producer."""
        with run.clock("wait_for_batch"), self.changed:
            self.changed.wait_for(lambda: self.error is not None or ready())
            if self.error is not None:
                raise self.error

    def _transfer(self, run: Run) -> None:
        """The engine gets the policy's weights: between two batches, or amid responses on their way."""
        with run.clock("update_weights"):
            if not self.bounds.partial:
                with self.paused(run):
                    return
            run.engine.pause()
            try:
                self._send(run)
            finally:
                run.engine.resume()

    def _send(self, run: Run) -> None:
        if run.unsent:  # not where only the critic was taught
            run.send_weights()
        with self.changed:
            self.sent = self.learning
            self.changed.notify_all()

    # the producer's side

    def _produce_all(self, run: Run) -> None:
        try:
            while self._begin(run):
                produced = produce(run, run.next_prompts(), self.next)
                with self.changed:
                    self.waiting.append(produced)
                    self.producing, self.next = None, self.next + 1
                    self.changed.notify_all()
        except BaseException as error:  # raised by whoever waits for a batch
            with self.changed:
                self.producing, self.error = None, error
                self.changed.notify_all()

    def _begin(self, run: Run) -> bool:
        """Wait until the next batch may be begun; False if there is none to come."""
        with run.clock("wait_for_room"), self.changed:
            self.changed.wait_for(lambda: self.closed or not self._is_wanted(run) or self._may_begin(run))
            if self.closed or not self._is_wanted(run):
                return False
            self.producing, self._begun_at = self.next, run.sampler.state_dict()
            return True

    def _is_wanted(self, run: Run) -> bool:
        return self.next <= run.total_steps and not run.used_up

    def _may_begin(self, run: Run) -> bool:
        return not self.held and self._is_wanted(run) and self.bounds.allow(self.next, self.learning, self.sent)


def staleness(run: Run, batch: Batch) -> dict[str, float]:
    """How many weight transfers lie between sampling a token and learning from it."""
    lag = (run.version - batch["weight_version"].flat).float()
    if not len(lag):
        return {}
    return {"async/version_lag/mean": float(lag.mean()), "async/version_lag/max": float(lag.max())}
