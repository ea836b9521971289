"""Running episodes: one task per sample waits for its trajectory, then for its score, while others still generate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from burnish.loop.replay import NO_RECORDING, Recording
from burnish.reward.trajectories import ScoredTrajectory, TrajectoryScorer
from burnish.rollout.engine import Engine
from burnish.rollout.episode import EngineSampler, Episode, Prompt, RequestQueue
from burnish.rollout.trajectory import Trajectory

IDLE_WAIT = 0.05  # seconds between two attempts to step an engine that has nothing to do (it may be paused)

Scored = list[ScoredTrajectory]  # of one sample


class EpisodeRunner:
    """Runs episodes on one engine, in one event loop."""

    def __init__(self, engine: Engine, episode: Episode, recording: Recording = NO_RECORDING) -> None:
        self.engine = engine
        self.episode = episode
        self.recording = recording
        self.queue = RequestQueue(engine)
        self._samplers: dict[asyncio.Task[Any], EngineSampler] = {}  # of running and canceled tasks

    async def run(self, prompt: Prompt) -> list[Trajectory]:
        """The trajectories of one sample: recorded ones where a recording is replayed."""
        recorded = self.recording.find(prompt)
        if recorded is not None:
            return recorded
        session = f"{prompt.seed:x}" if self.episode.uses_session else None
        sampler = EngineSampler(self.queue, prompt, session)
        task = asyncio.current_task()
        assert task is not None
        self._samplers[task] = sampler
        try:
            result = await self.episode.run(prompt, sampler)
        finally:
            if session is not None:
                self.engine.end_session(session)
        del self._samplers[task]
        trajectories = result if isinstance(result, list) else [result]
        self.recording.add(prompt, trajectories)
        return trajectories

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

    async def cancel(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Stop these samples: no more rewards, and no more tokens where the engine can abort."""
        for task in tasks:
            task.cancel()
        in_flight = [self._samplers[task].in_flight for task in tasks if task in self._samplers]
        futures = [future for future in in_flight if future is not None and not future.done()]
        if self.engine.capabilities.abort:
            self.engine.abort(futures)
        await self.wait(asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True))


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

    async def sample(prompt: Prompt) -> Scored:
        return await scorer.score(prompt, await runner.run(prompt))

    groups = []
    for number, group in enumerate(prompts):
        tasks = [asyncio.create_task(sample(prompt)) for prompt in group]
        baseline = None if greedy is None else asyncio.create_task(runner.run(greedy[number]))
        for task in tasks if baseline is None else [*tasks, baseline]:
            task.add_done_callback(_retrieve_exception)
        groups.append(Group(tasks, baseline))
    return groups


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


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, also where the caller (a notebook) already has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


class _Done(Protocol):
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...


def _retrieve_exception(done: _Done) -> None:
    """Whoever awaits the result raises it; asyncio need not warn about it as well."""
    if not done.cancelled():
        done.exception()
