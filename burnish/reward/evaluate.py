"""Evaluator: one sample in, one Outcome out, whatever the reward function does."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.reward.call import ARGUMENTS, Caller, describe_exception
from burnish.reward.sample import RAISED, TIMED_OUT, Outcome, Sample
from burnish.reward.source import Source


@dataclass(frozen=True)
class Setup:
    """What an evaluator is made from; the first message to a worker."""

    source: Source
    kwargs: Mapping[str, Any]
    timeout: float
    memory_mb: int
    withheld: list[str]


def pack(sample: Sample) -> bytes:
    """A sample as it travels: its random address, and the arguments of its call."""
    return pickle.dumps((_address(sample), 1, _arguments(sample) | {"prompt": sample.prompt, "query": sample.query}))


def pack_batch(samples: Sequence[Sample]) -> bytes:
    """Many samples as one: the address of the first, and lists of arguments under plural names."""
    rows = [_arguments(sample) for sample in samples]
    columns = {f"{name}s": [row[name] for row in rows] for name in ARGUMENTS}
    return pickle.dumps((_address(samples[0]), len(samples), columns))


def _address(sample: Sample) -> str:
    return f"{sample.uid}/{sample.sample}"


def _arguments(sample: Sample) -> dict[str, Any]:
    values = (sample.data_source, sample.solution_str, sample.ground_truth, sample.extra_info or {})
    return dict(zip(ARGUMENTS, values, strict=True))


class Evaluator:
    """Holds the reward function, imported. `before_each` is called with a sample's random address."""

    def __init__(self, setup: Setup, before_each: Callable[[str], None]) -> None:
        self.setup = setup
        self.before_each = before_each
        self.caller_of: Callable[[str], Caller] = setup.source.callers(setup.kwargs)
        # The built-in rules are plain functions; a user's own function is the same for every data source.
        self.is_async = setup.source.is_single and self.caller_of("").is_async
        self.loop = asyncio.new_event_loop()

    def outcome(self, payload: bytes) -> Outcome:
        """Evaluate one sample to its end."""
        label = "the sample"
        try:
            count, arguments, caller = self._unpack(payload)
            label = caller.label
            result = caller(arguments)
            if not inspect.isawaitable(result):
                return caller.read(result, count)
            return self.loop.run_until_complete(self._await(result, caller, count))
        except BaseException as error:  # sys.exit() in a reward function must not end the process either
            return self._failure(error, label)

    def outcomes_at_once(self, payloads: list[bytes], reply: Callable[[int, Outcome], None]) -> None:
        """Evaluate samples of an async function side by side; `reply(index, outcome)` as each is done."""

        async def one(index: int, payload: bytes) -> None:
            reply(index, await self._outcome_async(payload))

        async def all_of_them() -> None:
            await asyncio.gather(*(one(index, payload) for index, payload in enumerate(payloads)))

        self.loop.run_until_complete(all_of_them())

    async def _outcome_async(self, payload: bytes) -> Outcome:
        label = "the sample"
        try:
            count, arguments, caller = self._unpack(payload)
            label = caller.label
            return await self._await(caller(arguments), caller, count)
        except BaseException as error:
            return self._failure(error, label)

    async def _await(self, result: Awaitable[Any], caller: Caller, count: int) -> Outcome:
        seconds = self.setup.timeout * count
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return caller.read(await result, count)
        except TimeoutError:
            if limit.expired():
                return Outcome(kind=TIMED_OUT, text=f"timed out after {seconds:g} s in {caller.label}")
            raise

    def _unpack(self, payload: bytes) -> tuple[int, dict[str, Any], Caller]:
        address, count, arguments = pickle.loads(payload)
        self.before_each(address)
        return count, arguments, self.caller_of(arguments.get("data_source", ""))

    def _failure(self, error: BaseException, label: str) -> Outcome:
        try:
            return describe_exception(error, label, memory_mb=self.setup.memory_mb, withheld=self.setup.withheld)
        except BaseException as second:  # an exception whose own text raises
            return Outcome(
                kind=RAISED, text=f"raised {type(error).__name__} in {label} (its text: {type(second).__name__})"
            )
