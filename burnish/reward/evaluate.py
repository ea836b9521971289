"""Evaluator: calls the reward function for a sample and always returns an Outcome."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.reward.call import ARGUMENTS, PICTURES, Caller, Inputs, describe_exception
from burnish.reward.sample import RAISED, TIMED_OUT, Outcome, Sample
from burnish.reward.source import RewardSource


@dataclass(frozen=True)
class Setup:
    """Configuration of an evaluator; the first message to a worker."""

    source: RewardSource
    kwargs: Mapping[str, Any]
    timeout: float
    memory_mb: int
    withheld: list[str]


def pack(sample: Sample) -> bytes:
    """Pickle a sample: seed key, number of samples, and the arguments of the call."""
    more = {"prompt": sample.prompt, "query": sample.query, "row": sample.row, PICTURES: sample.pictures}
    return pickle.dumps((_seed_key(sample), 1, _arguments(sample) | more))


def pack_batch(samples: Sequence[Sample]) -> bytes:
    """Pickle samples for one call: the seed key of the first, and lists of arguments under plural names."""
    rows = [_arguments(sample) for sample in samples]
    columns = {f"{name}s": [row[name] for row in rows] for name in ARGUMENTS}
    columns["rows"] = [sample.row for sample in samples]
    return pickle.dumps((_seed_key(samples[0]), len(samples), columns))


def _seed_key(sample: Sample) -> str:
    return f"{sample.uid}/{sample.sample}"


def _arguments(sample: Sample) -> dict[str, Any]:
    values = (sample.data_source, sample.solution_str, sample.ground_truth, sample.extra_info or {})
    return dict(zip(ARGUMENTS, values, strict=True))


class Evaluator:
    """Holds the imported reward function. `before_each` is called with the seed key of each sample."""

    def __init__(self, setup: Setup, before_each: Callable[[str], None]) -> None:
        self.setup = setup
        self.before_each = before_each
        self.caller_of: Callable[[str], Caller] = setup.source.callers(setup.kwargs)
        # Built-in rules are never async; a user's function is the same for every data source.
        self.is_async = setup.source.is_single and self.caller_of("").is_async
        self.inputs = self.caller_of("").inputs if setup.source.is_single else Inputs()
        self.loop = asyncio.new_event_loop()
        self.num_samples = 1  # of the largest call so far, which bounds the size of a reply

    def evaluate(self, payload: bytes) -> Outcome:
        """Evaluate one sample and wait for the result."""
        label = "the sample"
        try:
            num_samples, arguments, caller = self._unpack(payload)
            label = caller.label
            result = caller(arguments)
            if not inspect.isawaitable(result):
                return caller.parse(result, num_samples)
            return self.loop.run_until_complete(self._await(result, caller, num_samples))
        except BaseException as error:  # sys.exit() in a reward function must not end the process either
            return self._failure(error, label)

    def evaluate_concurrently(self, payloads: list[bytes], reply: Callable[[int, Outcome], None]) -> None:
        """Evaluate samples of an async function concurrently; calls `reply(index, outcome)` as each finishes."""

        async def evaluate_one(index: int, payload: bytes) -> None:
            reply(index, await self._evaluate_async(payload))

        async def evaluate_all() -> None:
            await asyncio.gather(*(evaluate_one(index, payload) for index, payload in enumerate(payloads)))

        self.loop.run_until_complete(evaluate_all())

    async def _evaluate_async(self, payload: bytes) -> Outcome:
        label = "the sample"
        try:
            num_samples, arguments, caller = self._unpack(payload)
            label = caller.label
            return await self._await(caller(arguments), caller, num_samples)
        except BaseException as error:
            return self._failure(error, label)

    async def _await(self, result: Awaitable[Any], caller: Caller, num_samples: int) -> Outcome:
        seconds = self.setup.timeout * num_samples
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return caller.parse(await result, num_samples)
        except TimeoutError:
            if limit.expired():
                return Outcome(kind=TIMED_OUT, text=f"timed out after {seconds:g} s in {caller.label}")
            raise

    def _unpack(self, payload: bytes) -> tuple[int, dict[str, Any], Caller]:
        seed_key, num_samples, arguments = pickle.loads(payload)
        self.num_samples = max(self.num_samples, num_samples)
        self.before_each(seed_key)
        return num_samples, arguments, self.caller_of(arguments.get("data_source", ""))

    def _failure(self, error: BaseException, label: str) -> Outcome:
        try:
            return describe_exception(error, label, memory_mb=self.setup.memory_mb, withheld=self.setup.withheld)
        except BaseException as second:  # its __str__ raised
            return Outcome(
                kind=RAISED,
                text=f"raised {type(error).__name__} in {label} (and {type(second).__name__} in its __str__)",
            )
