"""Running episodes: one task per sample waits for its trajectory, then for its score, while others still generate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from burnish.loop.replay import NO_RECORDING, Recording
from burnish.loop.tracing import EpisodeTrace, EpisodeTracer
from burnish.reward.trajectories import ScoredTrajectory, TrajectoryScorer
from burnish.rollout.engine import Engine
from burnish.rollout.episode import NO_JOURNAL, EngineSampler, Episode, Journal, Prompt, RequestQueue, TokenCount
from burnish.rollout.oversampling import Shortest
from burnish.rollout.return_times import ReturnTimes
from burnish.rollout.trajectory import Trajectory

IDLE_WAIT = 0.05  # seconds between two attempts to step an engine that has nothing to do (it may be paused)

Scored = list[ScoredTrajectory]  # of one sample


class EpisodeRunner:
    """Runs episodes on one engine, in one event loop."""

    def __init__(
        self,
        engine: Engine,
        episode: Episode,
        recording: Recording = NO_RECORDING,
        journal: Journal = NO_JOURNAL,
        return_times: ReturnTimes | None = None,
        tracer: EpisodeTracer | None = None,
    ) -> None:
        self.engine = engine
        self.episode = episode
        self.recording = recording
        self.journal = journal
        self.tracer = tracer
        self.queue = RequestQueue(engine, return_times)
        self._samplers: dict[asyncio.Task[Any], EngineSampler] = {}  # of running and canceled tasks

    async def run(
        self, prompt: Prompt, shortest: Shortest | None = None, number: int = 0, trace: EpisodeTrace | None = None
    ) -> list[Trajectory]:
        """The trajectories of one sample: recorded ones where a recording is replayed.

        `shortest` ends it early if it becomes too long to be among them; `number` is that of the sample.
        """
        recorded = self.recording.find(prompt)
        if recorded is not None:
            return recorded
        session = f"{prompt.seed:x}" if self.episode.uses_session else None
        sampler = EngineSampler(self.queue, prompt, session, self.journal, TokenCount(shortest))
        task = asyncio.current_task()
        assert task is not None
        self._samplers[task] = sampler
        started = time.time()
        try:
            result = await self.episode.run(prompt, sampler if trace is None else trace.watch(sampler))
        finally:
            for opened in sampler.sessions():
                self.engine.end_session(opened)
        del self._samplers[task]
        if shortest is not None:
            shortest.finish(number, sampler.tokens.sampled, self._abort_all)
        trajectories = result if isinstance(result, list) else [result]
        for trajectory in trajectories:
            trajectory.info["generation_time"] = [started, time.time()]
            trajectory.info["segments"] = sampler.segments
        self.recording.add(prompt, trajectories)
        return trajectories

    async def run_and_score(self, prompt: Prompt, scorer: TrajectoryScorer) -> Scored:
        """The scored trajectories of one sample, traced where the run traces it."""
        trace = None if self.tracer is None else self.tracer.open(prompt)
        trajectories = await self.run(prompt, trace=trace)
        if trace is None:
            return await scorer.score(prompt, trajectories)
        with trace.child("reward", "reward") as span:
            scored = await scorer.score(prompt, trajectories)
            span.outputs = {"score": scored[-1].score.value}
        trace.finish(scored)
        return scored

    async def wait(self, awaited: asyncio.Future[Any]) -> Any:
        """Wait for a result; meanwhile step an engine that has no thread of its own."""
        awaited.add_done_callback(_retrieve_exception)
        submitted = self.queue.submitted
        while not awaited.done():
            if self.engine.step():
                await asyncio.sleep(0)  # let finished responses go to their rewards
                continue
            submitted.clear()
            new_requests = asyncio.ensure_future(submitted.wait())
            await asyncio.wait([awaited, new_requests], timeout=IDLE_WAIT, return_when=asyncio.FIRST_COMPLETED)
            new_requests.cancel()
        return await awaited

    def _abort_all(self) -> None:
        """Return what the engine has of every request: samplers go on with those that they still need."""
        if self.engine.capabilities.abort:
            self.engine.abort([future for sampler in self._samplers.values() for future in sampler.in_flight()])

    async def cancel(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Stop these samples: no more rewards, and no more tokens where the engine can abort."""
        for task in tasks:
            task.cancel()
        futures = [future for task in tasks if task in self._samplers for future in self._samplers[task].in_flight()]
        if self.engine.capabilities.abort:
            self.engine.abort(futures)
        aborted = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
        await self.wait(asyncio.gather(aborted, *tasks, return_exceptions=True))  # tools and environments are closed


@dataclass(frozen=True)
class Group:
    """The samples of one prompt, some perhaps still running. `greedy` is ReMax's baseline, not scored yet."""

    tasks: list[asyncio.Task[Scored]]
    greedy: asyncio.Task[list[Trajectory]] | None = None

    def finished(self) -> asyncio.Future[list[Scored]]:
        """The scored trajectories of each sample."""
        return asyncio.gather(*self.tasks)

    def all_tasks(self) -> list[asyncio.Task[Any]]:
        return [*self.tasks, *([] if self.greedy is None else [self.greedy])]


def start_groups(
    runner: EpisodeRunner,
    scorer: TrajectoryScorer,
    prompts: Sequence[Sequence[Prompt]],
    greedy: Sequence[Prompt] | None = None,
) -> list[Group]:
    """Start every sample of every prompt; greedy ones generate with the others."""
    scorer.expect(sum(map(len, prompts)))

    groups = []
    for number, group in enumerate(prompts):
        tasks = [asyncio.create_task(runner.run_and_score(prompt, scorer)) for prompt in group]
        baseline = None if greedy is None else asyncio.create_task(runner.run(greedy[number]))
        for task in tasks if baseline is None else [*tasks, baseline]:
            task.add_done_callback(_retrieve_exception)
        groups.append(Group(tasks, baseline))
    return groups


async def collect_shortest(
    runner: EpisodeRunner, scorer: TrajectoryScorer, prompts: Sequence[Sequence[Prompt]], num_kept: int
) -> list[list[Scored]]:
    """The scored trajectories of the shortest samples; an empty list for each sample that is dropped.

    They are scored when all are known: which samples a reward sees must not depend on when they finished.
    """
    shortest = Shortest(num_kept)

    async def sample(number: int, prompt: Prompt) -> list[Trajectory]:
        try:
            return await runner.run(prompt, shortest, number)
        except asyncio.CancelledError:
            if asyncio.current_task() in shortest.dropped:
                return []
            raise

    samples = [prompt for group in prompts for prompt in group]
    trajectories = await runner.wait(asyncio.gather(*(sample(*numbered) for numbered in enumerate(samples))))
    kept = shortest.kept()
    scorer.expect(len(kept))
    scored = iter(
        await asyncio.gather(*(scorer.score(samples[number], trajectories[number]) for number in sorted(kept)))
    )
    numbers = iter(range(len(samples)))
    return [[next(scored) if next(numbers) in kept else [] for _ in group] for group in prompts]


async def score_greedy(
    runner: EpisodeRunner, scorer: TrajectoryScorer, prompts: Sequence[Prompt], groups: Sequence[Group]
) -> list[ScoredTrajectory]:
    """The greedy trajectory of each group, scored: in a batch of their own where the reward is called per batch."""
    tasks = [group.greedy for group in groups if group.greedy is not None]
    trajectories = await runner.wait(asyncio.gather(*tasks))
    scorer.begin()
    scorer.expect(len(trajectories))
    scoring = [scorer.score(prompt, rows) for prompt, rows in zip(prompts, trajectories, strict=True)]
    return [scored[-1] for scored in await asyncio.gather(*scoring)]


async def run_episodes(engine: Engine, episode: Episode, prompts: Sequence[Prompt]) -> list[list[Trajectory]]:
    """The trajectories of every prompt, without scores."""
    runner = EpisodeRunner(engine, episode)
    return await runner.wait(asyncio.gather(*(runner.run(prompt) for prompt in prompts)))


class _Done(Protocol):
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...


def _retrieve_exception(done: _Done) -> None:
    """Whoever awaits the result raises it; asyncio need not warn about it as well."""
    if not done.cancelled():
        done.exception()
