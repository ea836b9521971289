"""Journals: a killed run repeats neither what was sampled nor what a tool answered."""

from __future__ import annotations

import asyncio
import json

import pytest

from burnish.loop.collect import EpisodeRunner
from burnish.loop.event_loop import run_coroutine
from burnish.loop.journal import FileJournal, Journals
from burnish.models.model_input import ModelInput
from burnish.rollout.conversation import TrajectoryBuilder
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import INTERRUPTED, Prompt

from ..rollout.test_episode import Echo


class Killed(BaseException):
    """The process ends here."""


class Caller:
    """Two turns with a tool call in between, which may be the end of the process."""

    uses_session = True

    def __init__(self, calls, *, dies=(), repeatable=True):
        self.calls, self.dies, self.repeatable = calls, set(dies), repeatable

    async def run(self, prompt, sampler):
        builder = TrajectoryBuilder(prompt.input)
        for number in range(2):
            builder.add_sampled(await sampler.generate(builder.input, max_tokens=2))

            async def act(number=number):
                self.calls.append((prompt.uid, number))
                if (prompt.uid, number) in self.dies:
                    raise Killed
                return {"answer": 20 + number}

            value = await sampler.observe(act, repeatable=self.repeatable)
            builder.add_observation([value.get("answer", 99)], "tool")
        builder.add_sampled(await sampler.generate(builder.input, max_tokens=1))
        return builder.build("stop")


def run(path, engine, episode, uid="a"):
    journal = FileJournal(path)
    try:
        runner = EpisodeRunner(engine, episode, journal=journal)
        prompt = Prompt(ModelInput((5, 6)), Sampling(50), seed=11, uid=uid)
        return run_coroutine(runner.run(prompt))[0]
    finally:
        journal.close()


@pytest.mark.parametrize("dies_at", [0, 1])
def test_a_killed_run_goes_on_where_it_was(tmp_path, dies_at):
    calls, path = [], tmp_path / "1.jsonl"
    whole = run(tmp_path / "whole.jsonl", Echo(), Caller([]))
    with pytest.raises(Killed):
        run(path, Echo(), Caller(calls, dies={("a", dies_at)}))
    engine = Echo()
    resumed = run(path, engine, Caller(calls))
    assert resumed.ids == whole.ids and resumed.log_probs == whole.log_probs and resumed.mask == whole.mask
    # Answered calls are not repeated; the one in flight is, because it is repeatable.
    assert calls == [("a", 0), ("a", 0), ("a", 1)] if dies_at == 0 else [("a", 0), ("a", 1), ("a", 1)]
    assert len(engine.calls) == 2 - dies_at  # nor turns


def test_a_call_in_flight_that_is_not_repeatable_is_reported(tmp_path):
    calls, path = [], tmp_path / "1.jsonl"
    with pytest.raises(Killed):
        run(path, Echo(), Caller(calls, dies={("a", 0)}, repeatable=False))
    resumed = run(path, Echo(), Caller(calls, repeatable=False))
    assert calls == [("a", 0), ("a", 1)] and 99 in resumed.ids


def test_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "1.jsonl"
    journal = FileJournal(path)
    journal.add("one", {"answer": "\ud800"})
    journal.begin("two")
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"key": "three", "val')
    again = FileJournal(path)
    again.add("four", {"answer": 4})
    again.close()
    last = FileJournal(path)
    assert last.find("one") is not None and last.find("two") is INTERRUPTED
    assert last.find("three") is None and last.find("four") == {"answer": 4}
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_checkpoints_make_journals_obsolete(tmp_path):
    journals = Journals(tmp_path)
    for name in ("1", "2", "validation-2", "3"):
        with journals.open(name):
            pass
    journals.drop_until(2)
    assert [path.name for path in tmp_path.iterdir()] == ["3.jsonl"]


class Clocked:
    """A conversation that records what it has waited for."""

    uses_session = True

    def __init__(self, seconds=()):
        self.seconds = list(seconds)

    async def run(self, prompt, sampler):
        builder = TrajectoryBuilder(prompt.input)
        builder.add_sampled(await sampler.generate(builder.input, max_tokens=2))

        async def act():
            await asyncio.sleep(self.seconds.pop())
            return {}

        await asyncio.gather(*(sampler.observe(act, name="wait") for _ in range(2)))
        builder.add_observation([9], "tool", latency=sampler.waited())
        assert sampler.waited() == 0.0
        return builder.build("stop")


def test_the_time_that_answers_took_is_recorded(tmp_path):
    """Acts of a turn run at the same time, so the longest counts."""
    path = tmp_path / "1.jsonl"
    assert run(path, Echo(), Clocked([0.001, 0.01])).turns[1].latency > 0
    lines = map(json.loads, path.read_text().splitlines())
    seconds = [line["value"]["seconds"] for line in lines if "seconds" in line.get("value", {})]
    assert run(path, Echo(), Clocked()).turns[1].latency == max(seconds) and len(seconds) == 2
