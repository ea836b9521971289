"""Discrete-event simulation of asynchronous training: throughput and staleness where responses have different lengths.

Engines decode sequences side by side; a free slot takes the next sample of a queue. The trainer updates on whole
batches, in order. A batch may start once at most `staleness` updates before its own are missing from the engines'
weights, as `async_training` allows it. A weight sync stops engines and trainer; sequences then go on.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TRAINER, SYNC = -1, -2  # events that are not an engine's: an update is done, its weights are in the engines


@dataclass(frozen=True)
class Lengths:
    """Response lengths: log-normal, cut at the longest that is allowed."""

    median: float
    sigma: float  # of the logarithm; 0 makes all of them the median
    longest: float

    def sample(self, rng: random.Random) -> float:
        if not self.sigma:
            return min(self.median, self.longest)
        return max(1.0, min(self.longest, self.median * rng.lognormvariate(0.0, self.sigma)))


@dataclass(frozen=True)
class Speed:
    """Seconds of a token for every sequence of an engine that decodes some."""

    base: float
    per_sequence: float = 0.0

    def token(self, sequences: int) -> float:
        return self.base + self.per_sequence * sequences


@dataclass(frozen=True)
class Scenario:
    """A training run to simulate."""

    engines: int
    slots: int  # sequences at once on an engine
    batch: int  # samples of a step
    staleness: int  # 0: synchronous
    speed: Speed
    train: Callable[[float], float]  # tokens of a batch -> seconds of everything that the trainer does with it
    sync: float
    steps: int


@dataclass
class Outcome:
    """What happened."""

    ends: list[float]  # when each step ended, with its weight sync
    lags: list[int]  # updates between the weights that began a batch and those it was trained with
    trained: list[int]  # samples of each step, by number, in order
    tokens: list[float]  # of each step
    trainer_busy: float
    engine_busy: float  # seconds in which an engine decoded, summed over engines
    in_flight: int  # samples begun, or waiting to be, when the last step ended
    rollouts: list[tuple[float, float]] = field(default_factory=list)  # when each batch was released, and finished

    def throughput(self, skip: int = 0) -> float:
        """Tokens per second, without the first steps."""
        start = self.ends[skip - 1] if skip else 0.0
        return sum(self.tokens[skip:]) / (self.ends[-1] - start)


def simulate(scenario: Scenario, lengths: Sequence[Sequence[float]]) -> Outcome:
    """Play all steps; `lengths` are those of each batch's samples, for every batch that is begun."""
    return _Simulation(scenario, lengths).play()


def draw(scenario: Scenario, lengths: Lengths, seed: int = 0) -> list[list[float]]:
    """Lengths of all batches that the scenario can begin. The same for every staleness, as far as they go."""
    rng = random.Random(seed)
    return [[lengths.sample(rng) for _ in range(scenario.batch)] for _ in range(scenario.steps + scenario.staleness)]


class _Engine:
    """Sequences that all advance by one token at a time, so that each finishes at a known token."""

    def __init__(self, number: int, speed: Speed) -> None:
        self.number, self.speed = number, speed
        self.position = 0.0  # tokens decoded so far, of any sequence that was there all the time
        self.time = 0.0
        self.busy = 0.0
        self.active: list[tuple[float, int, int]] = []  # (position of its end, batch, sample), a heap
        self.stamp = 0  # of the last change: older events are void

    def advance(self, now: float) -> None:
        if now > self.time:
            if self.active:
                self.position += (now - self.time) / self.speed.token(len(self.active))
                self.busy += now - self.time
            self.time = now

    def next_end(self) -> float | None:
        if not self.active:
            return None
        return self.time + max(0.0, self.active[0][0] - self.position) * self.speed.token(len(self.active))


class _Simulation:
    def __init__(self, scenario: Scenario, lengths: Sequence[Sequence[float]]) -> None:
        self.scenario, self.lengths = scenario, lengths
        self.engines = [_Engine(number, scenario.speed) for number in range(scenario.engines)]
        self.events: list[tuple[float, int, int, int]] = []  # (when, order, engine or one of the two below, stamp)
        self.order = 0
        self.queue: deque[tuple[int, int]] = deque()  # samples that wait for a slot
        self.free = [(0, number) for number in range(scenario.engines)]  # (sequences, engine), a heap with old entries
        self.remaining: list[int] = []  # samples of each begun batch that are not finished
        self.begun_at: list[int] = []  # updates that the engines' weights had when a batch began
        self.updates = 0  # that the engines have
        self.training: int | None = None
        self.outcome = Outcome([], [], [], [], 0.0, 0.0, 0)

    def play(self) -> Outcome:
        self._release(0.0)
        while len(self.outcome.ends) < self.scenario.steps:
            now, _, number, stamp = heapq.heappop(self.events)
            if number == TRAINER:
                self._pause(now)
            elif number == SYNC:
                self._synced(now)
            elif stamp == self.engines[number].stamp:
                self._finish(self.engines[number], now)
        finished = sum(len(self.lengths[batch]) for batch in range(len(self.outcome.ends)))
        self.outcome.in_flight = sum(map(len, self.lengths[: len(self.remaining)])) - finished
        self.outcome.engine_busy = sum(engine.busy for engine in self.engines)
        return self.outcome

    def _schedule(self, when: float, number: int, stamp: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, number, stamp))

    def _release(self, now: float) -> None:
        """Begin the batches that may begin."""
        last = min(self.updates + self.scenario.staleness, len(self.lengths) - 1)
        for batch in range(len(self.remaining), last + 1):
            self.remaining.append(len(self.lengths[batch]))
            self.begun_at.append(self.updates)
            self.outcome.rollouts.append((now, now))
            self.queue.extend((batch, sample) for sample in range(len(self.lengths[batch])))
        changed: set[int] = set()
        while self.queue and self.free:
            sequences, number = heapq.heappop(self.free)
            engine = self.engines[number]
            if sequences != len(engine.active):
                continue
            engine.advance(now)
            self._start(engine)
            changed.add(number)
            if len(engine.active) < self.scenario.slots:
                heapq.heappush(self.free, (len(engine.active), number))
        for number in changed:
            self._plan(self.engines[number])

    def _start(self, engine: _Engine) -> None:
        batch, sample = self.queue.popleft()
        heapq.heappush(engine.active, (engine.position + self.lengths[batch][sample], batch, sample))

    def _plan(self, engine: _Engine) -> None:
        engine.stamp += 1
        end = engine.next_end()
        if end is not None:
            self._schedule(end, engine.number, engine.stamp)

    def _finish(self, engine: _Engine, now: float) -> None:
        engine.advance(now)
        end, batch, _ = heapq.heappop(engine.active)
        engine.position = max(engine.position, end)
        self.remaining[batch] -= 1
        if self.queue:
            self._start(engine)
        else:
            heapq.heappush(self.free, (len(engine.active), engine.number))
        self._plan(engine)
        if self.remaining[batch] == 0:
            self.outcome.rollouts[batch] = (self.outcome.rollouts[batch][0], now)
            self._train(now)

    def _train(self, now: float) -> None:
        """Train on the next batch, if it is complete and the trainer is free."""
        step = len(self.outcome.ends)
        if self.training is None and step < len(self.remaining) and self.remaining[step] == 0:
            self.training = step
            seconds = self.scenario.train(sum(self.lengths[step]))
            self._schedule(now + seconds, TRAINER, 0)

    def _pause(self, now: float) -> None:
        """The update is done: engines stand still while they get its weights."""
        for engine in self.engines:
            engine.advance(now)
            engine.time = now + self.scenario.sync
            self._plan(engine)
        self._schedule(now + self.scenario.sync, SYNC, 0)

    def _synced(self, now: float) -> None:
        """A step has ended."""
        assert self.training is not None
        step, self.training = self.training, None
        self.outcome.ends.append(now)
        self.outcome.lags.append(step - self.begun_at[step])
        self.outcome.trained.append(len(self.lengths[step]))
        self.outcome.tokens.append(sum(self.lengths[step]))
        self.outcome.trainer_busy += self.scenario.train(self.outcome.tokens[-1])
        self.updates += 1
        self._release(now)
        self._train(now)
