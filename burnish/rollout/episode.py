"""Episode: how one trajectory comes about. It samples through a Sampler, which is one session of an engine.

class TwoTries:
    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        first = await sampler.generate(prompt.input)
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from burnish.batch import Batch
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Engine, Request, Sampling
from burnish.rollout.trajectory import Trajectory
from burnish.seeding import derive_seed


@dataclass(frozen=True)
class Prompt:
    """What an episode starts from: one sample of one row of the data."""

    input: ModelInput
    sampling: Sampling  # of the whole trajectory: max_tokens is its token budget
    seed: int  # of turn 0; later turns derive theirs from it
    uid: str = ""
    sample: int = 0
    row: Mapping[str, Any] = field(default_factory=dict)  # the row's columns: raw_prompt, extra_info, ...


class Sampler(Protocol):
    """What an episode may do with an engine."""

    async def generate(self, input: ModelInput, **sampling: Any) -> Completion:
        """The next turn, after everything in `input`. Keywords replace fields of the prompt's sampling."""
        ...

    def budget(self, input: ModelInput) -> int:
        """Tokens that the trajectory may still have after `input`."""
        ...


class Episode(Protocol):
    """From a prompt to one trajectory, or to several rows of training data."""

    uses_session: bool  # whether a turn extends the one before it, so that the engine should keep its KV

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory | list[Trajectory]: ...


class SingleTurn:
    """One prompt, one response."""

    uses_session = False

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        return Trajectory.single_turn(prompt.input, await sampler.generate(prompt.input))


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn's noise. Turn 0 keeps the trajectory's own."""
    return seed if turn == 0 else derive_seed(seed, "turn", turn)


def prompts_for(prompts: Batch, sampling: Sampling, n: int, *, seed: int, step: int) -> list[list[Prompt]]:
    """n prompts per row of the data. A trajectory's seed is a function of run seed, step, uid and sample number."""
    seed = seed if sampling.seed is None else sampling.seed
    names = [name for name in prompts if name not in ("prompt_ids", "uid") and isinstance(prompts[name], list)]
    groups = []
    for number, (ids, uid) in enumerate(zip(prompts["prompt_ids"].lists(), prompts["uid"], strict=True)):
        model_input, row = ModelInput(tuple(ids)), {name: prompts[name][number] for name in names}
        limited = sampling.after(len(ids))
        groups.append(
            [
                Prompt(model_input, limited, derive_seed(seed, step, uid, sample), uid, sample, row)
                for sample in range(n)
            ]
        )
    return groups


class RequestQueue:
    """Sends requests to the engine in batches: all that are submitted within one iteration of the event loop.

    An engine that receives the samples of a prompt together prefills the prompt once.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.submitted = asyncio.Event()  # set when the engine was given new requests
        self._pending: list[tuple[Request, asyncio.Future[Future[Completion]]]] = []

    async def submit(self, request: Request) -> Future[Completion]:
        """Returns once the engine has the request."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._flush)
        sent: asyncio.Future[Future[Completion]] = loop.create_future()
        self._pending.append((request, sent))
        return await sent

    def _flush(self) -> None:
        pending, self._pending = [(request, sent) for request, sent in self._pending if not sent.cancelled()], []
        try:
            futures: Sequence[Future[Completion]] = self.engine.generate([request for request, _ in pending])
        except Exception as error:
            for _, sent in pending:
                sent.set_exception(error)
            return
        for (_, sent), future in zip(pending, futures, strict=True):
            sent.set_result(future)
        self.submitted.set()


class EngineSampler:
    """A Sampler over an engine: counts turns, derives their seeds, and keeps to the trajectory's token budget."""

    def __init__(self, queue: RequestQueue, prompt: Prompt, session: str | None = None) -> None:
        self.queue = queue
        self.prompt = prompt
        self.session = session
        self.turn = 0
        self.in_flight: Future[Completion] | None = None  # the newest request

    def budget(self, input: ModelInput) -> int:
        used = len(input) - len(self.prompt.input)
        return max(0, self.prompt.sampling.max_tokens - used)

    async def generate(self, input: ModelInput, **sampling: Any) -> Completion:
        turn, self.turn = self.turn, self.turn + 1
        budget = self.budget(input)
        if budget == 0:
            return Completion([], [], [], "length")
        wanted = replace(self.prompt.sampling, **sampling) if sampling else self.prompt.sampling
        limit = min(wanted.max_tokens, budget)
        if limit != wanted.max_tokens:
            wanted = replace(wanted, max_tokens=limit, min_tokens=min(wanted.min_tokens, limit))
        request = Request(input, wanted, turn_seed(self.prompt.seed, turn), session=self.session)
        self.in_flight = await self.queue.submit(request)
        return await asyncio.wrap_future(self.in_flight)
