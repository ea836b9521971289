"""Episode: how one trajectory comes about. It samples through a Sampler, which is one session of an engine.

class TwoTries:
    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        first = await sampler.generate(prompt.input)
        ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from burnish.batch import Batch
from burnish.models.model_input import ModelInput
from burnish.models.routing import as_text, from_text
from burnish.rollout.engine import Completion, Engine, Request, Sampling, TokenWatch
from burnish.rollout.oversampling import Shortest
from burnish.rollout.prefill_count import PrefillCount
from burnish.rollout.return_times import ReturnTimes
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

    @property
    def watches(self) -> bool:
        """Whether `generate` can report tokens while they are sampled."""
        ...

    async def generate(
        self, input: ModelInput, *, watch: tuple[frozenset[int], Watcher] | None = None, **sampling: Any
    ) -> Completion:
        """The next turn, after everything in `input`. Keywords replace fields of the prompt's sampling.

        `watch`: tokens, and what is called with all tokens of the turn so far when one of them has been sampled.
        """
        ...

    def budget(self, input: ModelInput) -> int:
        """Tokens that the trajectory may still have after `input`."""
        ...

    async def observe(
        self, act: Act, *, name: str = "", repeatable: bool = True, key: str | None = None
    ) -> dict[str, Any]:
        """What `act` returns: a tool's answer, an environment's reply.

        It is journaled before it is returned. A run that was killed and resumed gets the recorded answer and does not
        act again; of an act that is not repeatable and had only begun, it gets INTERRUPTED. Acts of one `name` are
        expected to take about as long as the last ones. `key` identifies the act in the journal; without one, its
        position among the conversation's acts does.
        """
        ...

    def waited(self) -> float:
        """Seconds that the conversation has waited for `observe` since it was last asked.

        Answers of a journal count with the time that they took when they were recorded.
        """
        ...

    def fork(self, number: int, input: ModelInput, max_tokens: int | None = None) -> Sampler:
        """A sampler for another conversation of the same sample that starts from `input`.

        It has its own session and token budget; its seeds depend on `number`. `max_tokens` replaces the budget.
        """
        ...


Segment = list[float]  # kind, start in seconds since 1970, seconds
QUEUED, GENERATING, ACTING = range(3)  # kinds: waiting for the engine, sampling, waiting for a tool or environment
MAX_SEGMENTS = 1000  # of a conversation

INTERRUPTED: dict[str, Any] = {"interrupted": True}
Act = Callable[[], Awaitable[dict[str, Any]]]  # returns what JSON can hold, and pictures (burnish.media)
Watcher = Callable[[list[int]], None]


class Journal(Protocol):
    """What happened in the conversations of a step, written before it is used."""

    def find(self, key: str) -> dict[str, Any] | None:
        """What an earlier process recorded under this key; INTERRUPTED if it only began."""
        ...

    def begin(self, key: str) -> None:
        """An act starts."""
        ...

    def add(self, key: str, value: dict[str, Any]) -> None: ...


class NoJournal:
    """Remembers nothing: episodes that act on nothing need no journal."""

    def find(self, key: str) -> None:
        return None

    def begin(self, key: str) -> None:
        pass

    def add(self, key: str, value: dict[str, Any]) -> None:
        pass


NO_JOURNAL = NoJournal()


class Episode(Protocol):
    """From a prompt to one trajectory, or to several rows of training data."""

    uses_session: bool  # whether a turn extends the one before it, so that the engine should keep its KV
    scores: bool  # whether it scores its own trajectories, so that a run needs no reward function

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory | list[Trajectory]: ...


class SingleTurn:
    """One prompt, one response."""

    uses_session = False
    scores = False

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        return Trajectory.single_turn(prompt.input, await sampler.generate(prompt.input))


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn's noise. Turn 0 keeps the trajectory's own."""
    return seed if turn == 0 else derive_seed(seed, "turn", turn)


def prompts_for(prompts: Batch, sampling: Sampling, n: int, *, seed: int, step: int) -> list[list[Prompt]]:
    """n prompts per row of the data. A trajectory's seed is a function of run seed, step, uid and sample number."""
    seed = seed if sampling.seed is None else sampling.seed
    names = [name for name in prompts if name not in ("prompt_ids", "uid", "media") and isinstance(prompts[name], list)]
    media = prompts.get("media") or [()] * len(prompts)
    groups = []
    for number, (ids, uid) in enumerate(zip(prompts["prompt_ids"].lists(), prompts["uid"], strict=True)):
        model_input = ModelInput(tuple(ids), tuple(media[number]))
        row = {name: prompts[name][number] for name in names}
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

    def __init__(self, engine: Engine, return_times: ReturnTimes | None = None) -> None:
        self.engine = engine
        self.return_times = ReturnTimes() if return_times is None else return_times
        self.prefill = PrefillCount()
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


class TokenCount:
    """Tokens that a sample has sampled, and where it runs under oversampling, the end of samples that are too long."""

    def __init__(self, shortest: Shortest | None = None) -> None:
        self.sampled = 0
        self.shortest = shortest
        self.task = None if shortest is None else asyncio.current_task()

    async def limit(self, num_new: int) -> int | None:
        """Tokens after `num_new` more with which the sample is too long; None: no limit. Cancels one that is."""
        if self.shortest is None or self.task is None or self.shortest.max_tokens is None:
            return None
        left = self.shortest.max_tokens - self.sampled - num_new + 1
        if left > 0:
            return left
        self.shortest.drop(self.task)
        return await asyncio.get_running_loop().create_future()  # the canceled task ends here


def token_watch(watch: tuple[frozenset[int], Watcher] | None) -> TokenWatch | None:
    """For an engine, whose thread may be another than that of the event loop."""
    if watch is None:
        return None
    loop, (ids, watcher) = asyncio.get_running_loop(), watch

    def report(tokens: list[int]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(watcher, tokens)

    return TokenWatch(ids, report)


class Waiting:
    """The time in which at least one act of a conversation runs; a context manager around each of them."""

    def __init__(self) -> None:
        self._num_running = 0
        self._started = 0.0
        self._seconds = 0.0
        self._recorded = 0.0  # the longest answer of the journal: acts of a turn run at the same time

    def __enter__(self) -> None:
        if self._num_running == 0:
            self._started = time.monotonic()
        self._num_running += 1

    def __exit__(self, *exception: object) -> None:
        self._num_running -= 1
        if self._num_running == 0:
            self._seconds += time.monotonic() - self._started

    def recorded(self, seconds: float) -> None:
        self._recorded = max(self._recorded, seconds)

    def take(self) -> float:
        """Seconds since the last call."""
        if self._num_running:
            now = time.monotonic()
            self._seconds, self._started = self._seconds + now - self._started, now
        seconds, self._seconds, self._recorded = self._seconds + self._recorded, 0.0, 0.0
        return seconds


def _for_journal(completion: Completion) -> dict[str, Any]:
    fields = dict(vars(completion))  # not asdict, which copies every token's numbers
    if completion.routed_experts is not None:
        fields["routed_experts"] = as_text(completion.routed_experts)
    return fields


def _from_journal(recorded: Mapping[str, Any]) -> Completion:
    experts = recorded.get("routed_experts")
    return Completion(**{**recorded, "routed_experts": None if experts is None else from_text(experts)})


class EngineSampler:
    """A Sampler over an engine: counts turns, derives their seeds, and keeps to the trajectory's token budget."""

    def __init__(
        self,
        queue: RequestQueue,
        prompt: Prompt,
        session: str | None = None,
        journal: Journal = NO_JOURNAL,
        tokens: TokenCount | None = None,
    ) -> None:
        self.queue = queue
        self.prompt = prompt
        self.session = session
        self.journal = journal
        self.tokens = TokenCount() if tokens is None else tokens  # of all forks together
        self.turn = 0
        self.num_acts = 0
        self.waiting = Waiting()
        self.segments: list[Segment] = []  # what it did when, of forks too
        self._return_at = 0.0  # when the last of the current acts is expected to end
        self.forks: list[EngineSampler] = []
        self.requests: list[Future[Completion]] = []

    def budget(self, input: ModelInput) -> int:
        used = len(input) - len(self.prompt.input)
        return max(0, self.prompt.sampling.max_tokens - used)

    @property
    def watches(self) -> bool:
        return self.queue.engine.capabilities.watch

    async def generate(
        self, input: ModelInput, *, watch: tuple[frozenset[int], Watcher] | None = None, **sampling: Any
    ) -> Completion:
        turn, self.turn = self.turn, self.turn + 1
        self._return_at = 0.0
        budget = self.budget(input)
        if budget == 0:
            return Completion([], [], [], "length")
        wanted = replace(self.prompt.sampling, **sampling) if sampling else self.prompt.sampling
        limit = min(wanted.max_tokens, budget)
        if limit != wanted.max_tokens:
            wanted = replace(wanted, max_tokens=limit, min_tokens=min(wanted.min_tokens, limit))
        key = f"{self.prompt.seed:x}.turn{turn}.{input.key.hex()}"
        recorded = self.journal.find(key)
        if recorded is not None:
            completion = _from_journal(recorded)
        else:
            started = time.time()
            completion = await self._request(input, wanted, turn_seed(self.prompt.seed, turn), token_watch(watch))
            self._add_segments(started, (QUEUED, completion.queued), (GENERATING, None))
            if completion.finish_reason != "abort":
                self.journal.add(key, _for_journal(completion))
        self.tokens.sampled += len(completion.ids)
        if self._return_at and self.session is not None:  # acts began while the turn was sampled
            self.queue.engine.expect_return(self.session, max(0.0, self._return_at - time.monotonic()))
        return completion

    async def _request(self, input: ModelInput, sampling: Sampling, seed: int, watch: TokenWatch | None) -> Completion:
        while True:
            limit = await self.tokens.limit(0)
            if limit is not None and limit < sampling.max_tokens:
                sampling = replace(sampling, max_tokens=limit, min_tokens=min(sampling.min_tokens, limit))
            request = Request(input, sampling, seed, session=self.session, watch=watch)
            self.queue.prefill.sent(request)
            future = await self.queue.submit(request)
            self.requests.append(future)
            completion = await asyncio.wrap_future(future)
            self.queue.prefill.completed(request, completion)
            if await self.tokens.limit(len(completion.ids)) is None or completion.finish_reason != "abort":
                return completion
            # It may still be among the shortest samples: the same tokens again, and some more.

    async def observe(
        self, act: Act, *, name: str = "", repeatable: bool = True, key: str | None = None
    ) -> dict[str, Any]:
        if key is None:
            key, self.num_acts = f"act{self.num_acts}", self.num_acts + 1
        key = f"{self.prompt.seed:x}.{key}"
        recorded = self.journal.find(key)
        if recorded is not None and (recorded is not INTERRUPTED or not repeatable):
            self.waiting.recorded(recorded.get("seconds", 0.0))
            return recorded.get("value", recorded)
        self.journal.begin(key)
        self._expect_return(name)
        started = time.time()
        with self.waiting:
            value = await act()
        seconds = max(0.0, time.time() - started)
        self._add_segments(started, (ACTING, seconds))
        self.queue.return_times.add(name, seconds)
        self.journal.add(key, {"value": value, "seconds": seconds})
        return value

    def waited(self) -> float:
        return self.waiting.take()

    def _add_segments(self, started: float, *parts: tuple[int, float | None]) -> None:
        """What happened since `started`, one part after the other; None: until now."""
        for kind, seconds in parts:
            seconds = max(0.0, time.time() - started) if seconds is None else seconds
            if seconds > 0 and len(self.segments) < MAX_SEGMENTS:
                self.segments.append([kind, started, seconds])
            started += seconds

    def _expect_return(self, name: str) -> None:
        """Tell the engine when this session's next request will come: after the last of the current acts."""
        engine, seconds = self.queue.engine, self.queue.return_times.expected(name)
        if self.session is None or seconds is None or not engine.capabilities.sessions:
            return
        return_at = time.monotonic() + seconds
        if return_at > self._return_at:
            self._return_at = return_at
            engine.expect_return(self.session, seconds)

    def fork(self, number: int, input: ModelInput, max_tokens: int | None = None) -> EngineSampler:
        sampling = self.prompt.sampling
        sampling = sampling if max_tokens is None else replace(sampling, max_tokens=max_tokens)
        seed = derive_seed(self.prompt.seed, "fork", number)
        prompt = replace(self.prompt, input=input, sampling=sampling.after(len(input)), seed=seed)
        session = None if self.session is None else f"{self.session}-{number}"
        sampler = EngineSampler(self.queue, prompt, session, self.journal, self.tokens)
        sampler.segments = self.segments
        self.forks.append(sampler)
        return sampler

    def in_flight(self) -> list[Future[Completion]]:
        """Requests that the engine still works on, those of forks included."""
        return [f for f in self.requests if not f.done()] + [f for fork in self.forks for f in fork.in_flight()]

    def sessions(self) -> list[str]:
        """Sessions of this sampler and its forks."""
        own = [] if self.session is None else [self.session]
        return own + [session for fork in self.forks for session in fork.sessions()]
