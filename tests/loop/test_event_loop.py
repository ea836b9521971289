"""One event loop for all steps: what users' agents keep between steps goes on working."""

import asyncio

import pytest

from burnish.loop.event_loop import run_coroutine


class Client:
    """Bound to the loop of its first use, as HTTP sessions are."""

    def __init__(self):
        self.answers = None

    async def ask(self):
        if self.answers is None:
            self.answers = asyncio.Queue()
            self.server = asyncio.create_task(self.serve())
        return await self.answers.get()

    async def serve(self):
        for number in range(3):
            await self.answers.put(number)
            await asyncio.sleep(0)


def test_objects_live_from_step_to_step():
    client = Client()
    assert [run_coroutine(client.ask()) for _ in range(3)] == [0, 1, 2]


def test_inside_a_running_loop():
    client = Client()

    async def notebook():
        return [run_coroutine(client.ask()) for _ in range(2)]

    assert asyncio.run(notebook()) == [0, 1]


def test_a_failure_ends_what_it_started():
    ended = []

    async def sample():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("sample")

    async def step():
        running = asyncio.create_task(sample())
        await asyncio.sleep(0)
        assert not running.done()
        raise ValueError("a reward failed")

    with pytest.raises(ValueError, match="a reward failed"):
        run_coroutine(step())
    assert ended == ["sample"]
