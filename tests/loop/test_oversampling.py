"""rollout.over_sample_rate: the shortest samples are kept, whatever finished first, and the others end early."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from burnish.loop.collect import EpisodeRunner, collect_shortest
from burnish.models.model_input import ModelInput
from burnish.reward.null_scorer import NullScorer
from burnish.reward.trajectories import TrajectoryScorer
from burnish.rollout.engine import Capabilities, Completion, Sampling
from burnish.rollout.episode import Prompt, SingleTurn
from burnish.rollout.oversampling import num_kept
from burnish.rollout.trajectory import Trajectory

LENGTHS = [9, 40, 7, 25, 7, 12, 3, 100]  # of samples 0 to 7
MAX_TOKENS = 100


class ScriptedEngine:
    """Sample `seed` has LENGTHS[seed] tokens, of which every step generates `speeds[seed]`."""

    def __init__(self, speeds, *, abort=True):
        self.capabilities = Capabilities("token", invariant=True, abort=abort)
        self.speeds = speeds
        self.in_flight = {}
        self.num_generated = 0

    def generate(self, requests):
        futures = [Future() for _ in requests]
        self.in_flight |= {future: (request, 0) for future, request in zip(futures, requests, strict=True)}
        return futures

    def step(self):
        for future, (request, done) in list(self.in_flight.items()):
            whole = LENGTHS[request.ids[0]]
            limit = min(whole, request.sampling.max_tokens)
            new = min(limit, done + self.speeds[request.ids[0]])
            self.num_generated += new - done
            self.in_flight[future] = (request, new)
            if new == limit:
                self.finish(future, "stop" if limit == whole else "length")
        return bool(self.in_flight)

    def finish(self, future, reason):
        _, done = self.in_flight.pop(future)
        future.set_result(Completion(list(range(done)), [-1.0] * done, [0] * done, reason))

    def abort(self, futures):
        for future in futures:
            self.finish(future, "abort")

    def end_session(self, session):
        pass


class Halves:
    """Two turns: the second repeats the first one's length, so that a sample has twice the tokens."""

    uses_session = scores = False

    async def run(self, prompt, sampler):
        first = await sampler.generate(prompt.input)
        await sampler.generate(prompt.input)
        return Trajectory.single_turn(prompt.input, first)


def collect(engine, kept, episode=SingleTurn()):  # noqa: B008
    row = {"data_source": "", "ground_truth": "", "extra_info": {}}
    prompts = [
        Prompt(ModelInput((seed,)), Sampling(MAX_TOKENS), seed, str(seed // 2), seed % 2, row)
        for seed in range(len(LENGTHS))
    ]
    groups = [prompts[start : start + 2] for start in range(0, len(prompts), 2)]
    scorer = TrajectoryScorer(NullScorer(), lambda ids: "", lambda ids: "")

    async def run():
        return await collect_shortest(EpisodeRunner(engine, episode), scorer, groups, kept)

    scored = asyncio.run(run())
    samples = [sample for group in scored for sample in group]
    return [number for number, rows in enumerate(samples) if rows], scored


SPEEDS = ([1] * 8, [1, 50, 1, 50, 1, 50, 1, 50], [50, 1, 50, 1, 50, 1, 50, 1], [3, 1, 4, 1, 5, 9, 2, 6])


@pytest.mark.parametrize("episode", [SingleTurn(), Halves()])
@pytest.mark.parametrize("abort", [True, False])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_the_shortest_are_kept_whatever_finished_first(speeds, abort, episode):
    assert collect(ScriptedEngine(speeds, abort=abort), 3, episode)[0] == [2, 4, 6]
    assert collect(ScriptedEngine(speeds, abort=abort), 2, episode)[0] == [2, 6]  # the earlier one of two equal ones
    assert collect(ScriptedEngine(speeds, abort=abort), 8, episode)[0] == list(range(8))


def test_kept_samples_are_whole_and_dropped_ones_end_early():
    engine = ScriptedEngine([1] * 8)
    kept, scored = collect(engine, 6)
    assert kept == [0, 2, 3, 4, 5, 6]
    rows = [rows[-1].trajectory for group in scored for rows in group if rows]
    assert [len(row.ids) for row in rows] == [LENGTHS[number] for number in kept]
    assert all(row.finish_reason == "stop" for row in rows)
    # 40 and 100 tokens would have been generated; they stop after the 25 of the longest that is kept.
    assert engine.num_generated <= sum(LENGTHS[number] for number in kept) + 2 * 26


def test_an_aborted_sample_that_is_short_after_all_is_generated_again():
    engine = ScriptedEngine([50, 50, 50, 50, 1, 50, 50, 50])  # sample 4 is slow and short
    assert collect(engine, 3)[0] == [2, 4, 6]


def test_number_of_samples():
    assert [num_kept(8, rate) for rate in (0.1, 0.25, 0.5, 1.0)] == [7, 6, 4, 1]
    assert num_kept(10, 0.1) == 9
