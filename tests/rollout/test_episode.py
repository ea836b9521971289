"""Episodes: seeds, token budgets, sessions, and requests that reach the engine together."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.loop.collect import EpisodeRunner, run_episodes
from burnish.loop.event_loop import run_coroutine
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Completion, Sampling
from burnish.rollout.episode import Prompt, SingleTurn, prompts_for, turn_seed
from burnish.rollout.trajectory import NOT_SAMPLED, Trajectory, Turn


def rows():
    return Batch(
        prompt_ids=Ragged.of([[5, 6], [7, 8, 9], [5, 6]], torch.int64), uid=["a", "b", "c"], extra_info=[1, 2, 3]
    )


def seeds(n=2, seed=1, step=4, batch=None):
    return [[p.seed for p in group] for group in prompts_for(batch or rows(), Sampling(3), n, seed=seed, step=step)]


class Echo:
    """An engine that answers every request at once with its seed's last digits, as many as it may."""

    capabilities = Capabilities("token", invariant=True, abort=True)

    def __init__(self):
        self.calls, self.ended, self.aborted = [], [], []
        self.held: list[Future] = []

    def generate(self, requests):
        self.calls.append(list(requests))
        futures = [Future() for _ in requests]
        for future, request in zip(futures, requests, strict=True):
            future.set_running_or_notify_cancel()
            ids = [request.seed % 7] * request.sampling.max_tokens
            future.set_result(Completion(ids, [-1.0] * len(ids), [1] * len(ids), "length"))
        return futures

    def end_session(self, session):
        self.ended.append(session)

    def abort(self, futures):
        self.aborted += futures

    def step(self):
        return False


class Conversation:
    """Three turns of at most two tokens; the environment answers with one token in between."""

    uses_session = True

    async def run(self, prompt, sampler):
        context, ids, mask, log_probs, versions, turns = prompt.input, [], [], [], [], []
        for _ in range(3):
            completion = await sampler.generate(context, max_tokens=2)
            start = len(ids)
            ids += completion.ids
            mask += [True] * len(completion.ids)
            log_probs += completion.log_probs
            versions += completion.versions
            turns.append(Turn(start, len(ids), finish_reason=completion.finish_reason))
            if sampler.budget(prompt.input.extend(tuple(ids))) == 0:
                break
            ids, mask, log_probs, versions = [*ids, 20], [*mask, False], [*log_probs, 0.0], [*versions, NOT_SAMPLED]
            turns.append(Turn(len(ids) - 1, len(ids), "tool"))
            context = prompt.input.extend(tuple(ids))
        return Trajectory(prompt.input, ids, mask, log_probs, versions, turns, turns[-1].finish_reason or "stop")


def prompt(max_tokens=20, **fields):
    return Prompt(ModelInput((1, 2)), Sampling(max_tokens), seed=99, **fields)


def test_one_prompt_per_sample():
    sampling = Sampling(3, temperature=0.5)
    groups = prompts_for(rows(), sampling, 2, seed=1, step=4)
    assert [[p.input.ids for p in group] for group in groups] == [[(5, 6)] * 2, [(7, 8, 9)] * 2, [(5, 6)] * 2]
    assert all(p.sampling is sampling for group in groups for p in group)
    assert [[(p.uid, p.sample, p.row) for p in group] for group in groups][1] == [
        ("b", 0, {"extra_info": 2}),
        ("b", 1, {"extra_info": 2}),
    ]


def test_a_seed_depends_on_run_seed_step_uid_and_sample():
    flat = [seed for group in seeds() for seed in group]
    assert len(set(flat)) == 6  # equal prompts of different uid too
    assert all(0 <= seed < 1 << 63 for seed in flat)
    assert not set(flat) & {s for group in seeds(seed=2) for s in group}
    assert not set(flat) & {s for group in seeds(step=5) for s in group}
    renamed = rows().keep("prompt_ids", "extra_info").add(uid=["a", "b", "d"])
    assert [a == b for a, b in zip(seeds(), seeds(batch=renamed), strict=True)] == [True, True, False]


def test_a_seed_depends_on_nothing_else():
    assert seeds() == seeds()
    assert [group[:2] for group in seeds(n=5)] == seeds(n=2)
    assert seeds(batch=rows().select([2, 0, 1])) == [seeds()[i] for i in (2, 0, 1)]
    own = [[p.seed for p in group] for group in prompts_for(rows(), Sampling(3, seed=2), 2, seed=1, step=4)]
    assert own == seeds(seed=2), "a seed of the sampling replaces the run's"


def test_turn_0_has_the_seed_of_the_trajectory_and_later_turns_their_own():
    assert turn_seed(99, 0) == 99
    assert len({turn_seed(99, turn) for turn in range(5)}) == 5


def test_a_response_gets_what_its_prompt_leaves():
    groups = prompts_for(rows(), Sampling(3, min_tokens=3, max_total_tokens=5), 1, seed=1, step=4)
    assert [group[0].sampling.max_tokens for group in groups] == [3, 2, 3]
    assert [group[0].sampling.min_tokens for group in groups] == [3, 2, 3]


def test_first_turns_reach_the_engine_in_one_call():
    engine = Echo()
    samples = [replace(prompt(3), seed=seed) for seed in range(5)]
    trajectories = run_coroutine(run_episodes(engine, SingleTurn(), samples))
    assert [[request.seed for request in call] for call in engine.calls] == [[0, 1, 2, 3, 4]]
    assert [rows[0].ids for rows in trajectories] == [[seed] * 3 for seed in range(5)]
    assert engine.calls[0][0].session is None and engine.ended == []


def test_turns_of_a_conversation():
    engine = Echo()
    ((trajectory,),) = run_coroutine(run_episodes(engine, Conversation(), [prompt()]))
    requests = [request for call in engine.calls for request in call]
    assert [request.seed for request in requests] == [turn_seed(99, turn) for turn in range(3)]
    assert requests[2].ids == (1, 2, *trajectory.ids[:6]), "the tokens given are the tokens sampled before"
    assert {request.session for request in requests} == {"63"} and engine.ended == ["63"]
    assert trajectory.mask == [True, True, False] * 3


@pytest.mark.parametrize(("budget", "lengths"), [(20, [2, 2, 2]), (5, [2, 2]), (4, [2, 1]), (2, [2])])
def test_the_token_budget_is_that_of_the_trajectory(budget, lengths):
    engine = Echo()
    ((trajectory,),) = run_coroutine(run_episodes(engine, Conversation(), [prompt(budget)]))
    sampled = [turn.end - turn.start for turn in trajectory.turns if turn.role == "assistant"]
    assert sampled == lengths and len(trajectory.ids) <= budget + 3
    assert sum(sampled) <= budget


def test_without_budget_nothing_is_sampled():
    async def run():
        runner = EpisodeRunner(Echo(), SingleTurn())
        from burnish.rollout.episode import EngineSampler

        sampler = EngineSampler(runner.queue, prompt(3))
        return await sampler.generate(ModelInput((1, 2, 3, 4, 5))), runner.engine.calls

    completion, calls = run_coroutine(run())
    assert completion == Completion([], [], [], "length") and calls == []


def test_an_engine_that_refuses_fails_every_sample_that_waits():
    class Refusing(Echo):
        def generate(self, requests):
            raise ValueError("too long")

    async def run():
        runner = EpisodeRunner(Refusing(), SingleTurn())
        tasks = [asyncio.ensure_future(runner.run(prompt())) for _ in range(2)]
        await asyncio.wait(tasks)
        return [str(task.exception()) for task in tasks]

    assert run_coroutine(run()) == ["too long"] * 2


def test_canceled_samples_are_aborted():
    class Slow(Echo):
        def generate(self, requests):
            self.held = [Future() for _ in requests]
            for future in self.held:
                future.set_running_or_notify_cancel()
            return self.held

        def abort(self, futures):
            super().abort(futures)
            for future in futures:
                future.set_result(Completion([4], [-1.0], [1], "abort"))

    async def run():
        engine = Slow()
        runner = EpisodeRunner(engine, SingleTurn())
        tasks = [asyncio.ensure_future(runner.run(prompt())) for _ in range(3)]
        while not engine.held:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        await runner.cancel(tasks[1:])
        engine.held[0].set_result(Completion([4], [-1.0], [1], "stop"))
        return engine, await tasks[0], [task.cancelled() for task in tasks]

    engine, (kept,), canceled = run_coroutine(run())
    assert engine.aborted == engine.held[1:] and kept.finish_reason == "stop" and canceled == [False, True, True]
