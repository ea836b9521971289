"""SglangEngine: SGLang's HTTP server, and its native generate call. Token ids go in and come out.

One thread runs an event loop in which every response is a task: ask, wait, keep. The server is ours, started here and
ended with us, or one that runs already (engine_kwargs.sglang.base_url).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from burnish.errors import UserError
from burnish.rollout.engine import (
    Capabilities,
    Completion,
    EngineDied,
    EngineOptions,
    Request,
    check_requests,
    check_sampling,
)
from burnish.rollout.engines.checkpoint_stream import Weights
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.sglang.requests import Asked, ending, refusals, score_of, scoring_body
from burnish.rollout.engines.sglang.server import (
    ANSWERING,
    POLL,
    Server,
    check_server,
    launch_arguments,
    wait_for_server,
)
from burnish.rollout.engines.sglang.weights import WAYS, way_to_send
from burnish.rollout.stop import Finish

# Seconds.
STARTING, ATTACHING = 600.0, 60.0  # until a server answers: one that we start, one that runs already
LOADING = 1800.0  # for new weights
WATCHING = 10.0  # between two looks at a server that makes tokens
MISSES = 3  # of such answers in a row: it is dead
ERRANDS = 32  # short calls at once
SPARE_FILES = 128  # that this process may open beside its long calls


class SglangEngine:
    """Public methods are called from any thread; what they wait for happens in the engine's own."""

    check = staticmethod(check_server)
    refusals = staticmethod(refusals)

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.eos_ids = frozenset(options.eos_ids)
        self.version = 0
        self.counts: Counter[str] = Counter()
        self.closed = False
        self._holds: set[str] = set()  # why no token is made now: pause, sleep, load
        self._asleep = 0
        self._asked: dict[Future[Completion], Asked] = {}
        self._flying: dict[str, Asked] = {}  # calls that the server works on, by their rid
        check_server(options.extra, options.device, options.section)
        self._server = None if "base_url" in options.extra else Server(launch_arguments(options))
        self._http = HttpClient(options.extra["base_url"] if self._server is None else self._server.url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-sglang-engine", daemon=True)
        self._thread.start()
        try:
            self._way = WAYS[way_to_send(options.extra, options.device, options.section)]
            self.capabilities = self._do(self._prepare())
            self._weights = Weights(options.model)
        except BaseException:
            self.close()
            raise

    # the start

    async def _prepare(self) -> Capabilities:
        """Wait until the server answers; what it is like."""
        self._go = asyncio.Event()
        self._go.set()
        self._death: asyncio.Future[None] = self._loop.create_future()
        self._places = asyncio.Semaphore(min(self.options.max_num_seqs, most_connections()))
        self._errands = asyncio.Semaphore(ERRANDS)
        patience = self.options.extra.get("start_timeout", ATTACHING if self._server is None else STARTING)
        info = await wait_for_server(self._http, self._server, patience)
        longest = info.get("context_length")
        if longest is not None and longest < self.options.max_model_len:
            key, value = f"{self.options.section}.max_model_len", self.options.max_model_len
            raise UserError("is more than the server's context", key=key, value=value, allowed=f"up to {longest}")
        self._watcher = self._loop.create_task(self._watch())
        self._sleeps = bool(info.get("enable_memory_saver"))
        exact = bool(info.get("enable_deterministic_inference"))  # else the server takes no notice of a seed
        addressed = "request" if exact else "none"
        return Capabilities(addressed, invariant=exact, score=True, score_at=1.0, abort=True, sleep=self._sleeps)

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options)
        for sampling in {request.sampling for request in requests}:
            check_sampling(self, sampling, self.options.section)
        self._check_open()
        asked = [Asked(request, Future()) for request in requests]
        for one in asked:
            one.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._loop.call_soon_threadsafe(self._begin, asked)
        return [one.future for one in asked]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        self._do(self._abort(list(futures)))

    def pause(self) -> None:
        self._do(self._hold("pause"))

    def resume(self) -> None:
        self._do(self._release("pause"))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Responses in the making are broken off, and go on with the new weights from where they are."""
        self._do(self._hold("load"))
        try:
            if self._asleep == 2:
                self._memory("resume", "weights")
                self._asleep = 1
            self._way.load()(self._weights.stream(stream), self.options, self._post_weights)
            if not self._asleep:  # a sleeping server has no cache to drop
                self._do(self._flush())
            self.version = version
        finally:
            self._do(self._release("load"))

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        if temperature != self.capabilities.score_at:
            raise NotImplementedError("SGLang scores at temperature 1 only (capabilities.score_at)")
        return self._do(self._score(rows))

    def sleep(self, level: int = 1) -> None:
        self._do(self._lie_down())
        if self._sleeps:
            self._do(self._flush())
            self._memory("release", *(["kv_cache", "weights"] if level >= 2 else ["kv_cache"]))
            self._asleep = min(level, 2)
        self.counts["sleeps"] += 1

    def wake(self) -> None:
        if self._asleep:
            self._memory("resume", *(["weights", "kv_cache"] if self._asleep == 2 else ["kv_cache"]))
            self._asleep = 0
        self._do(self._release("sleep"))

    def stats(self) -> dict[str, float]:
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def step(self) -> bool:
        return False

    def close(self) -> None:
        """What is still asked fails."""
        if not self.closed:
            self.closed = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            if self._server is not None:
                self._server.close()

    # from the caller's thread

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("the engine is closed")

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.closed:
            work.close()
            self._check_open()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _post_weights(self, path: str, body: dict[str, Any]) -> Any:
        return self._do(self._http.post(path, body, LOADING))

    def _memory(self, way: str, *tags: str) -> None:
        self._do(self._http.post(f"/{way}_memory_occupation", {"tags": list(tags)}, ANSWERING))

    # in the engine's thread

    def _begin(self, asked: list[Asked]) -> None:
        for one in sorted(asked, key=lambda one: one.request.priority):
            self._asked[one.future] = one
            one.task = self._loop.create_task(self._answer(one))

    async def _answer(self, one: Asked) -> None:
        """From the request to its completion, through as many calls as pauses make of it."""
        try:
            end = None
            while end is None:
                async with self._places:
                    await self._go.wait()
                    end = Finish("abort") if one.unwanted else await self._ask(one)
            self._settle(one, one.completion(end))
        except Exception as error:  # nobody must wait for ever on a future of a broken engine
            self._settle(one, error)

    def _settle(self, one: Asked, outcome: Completion | Exception) -> None:
        if self._asked.pop(one.future, None) is None:
            return  # it was aborted or closed meanwhile
        if isinstance(outcome, Completion):
            self.counts["tokens"] += len(outcome.ids)
            self.counts["finished"] += 1
            one.future.set_result(outcome)
        else:
            one.future.set_exception(outcome)

    async def _ask(self, one: Asked) -> Finish | None:
        """One call, and a second one for its score where the log-probs of the first are bent; None if broken off."""
        sampling, version, known = one.request.sampling, self.version, len(one.ids)
        reply = await self._fly(one, one.body(sorted(self.eos_ids), self.capabilities.addressed != "none"))
        self.counts["prompt_tokens"] += reply["meta_info"].get("prompt_tokens", 0)
        self.counts["prefix_hit_tokens"] += reply["meta_info"].get("cached_tokens", 0)
        theirs = one.take(reply, version)
        ours = ending(one.ids, known, sampling, self.eos_ids, self.options.decode)
        if ours is not None:
            one.cut(ours[0])
        end = ours[1] if ours is not None else theirs
        if end is None and one.unwanted:
            end = Finish("abort")
        if end is None and not self._holds:
            raise RuntimeError(f"SGLang broke off a response: {reply['meta_info']['finish_reason']}")
        if sampling.looks_back and (end is None or not await self._score_again(one)):
            one.forget()
            return None
        return end

    async def _score_again(self, one: Asked) -> bool:
        """False if it was broken off."""
        if not one.ids:
            return True
        prompt = len(one.request.ids)
        body = scoring_body([*one.request.ids, *one.ids], prompt, one.request.sampling.logprobs or 0)
        one.rid = body["rid"]
        score = score_of(await self._fly(one, body), len(one.ids))
        if score is not None:
            one.log_probs, one.top = score.log_probs, score.top
        return score is not None

    async def _fly(self, one: Asked, body: dict[str, Any]) -> dict[str, Any]:
        """The reply, or the server's death if that comes first. It may take hours: the watch is its time limit."""
        call = self._loop.create_task(self._http.post("/generate", body, None))
        self._flying[one.rid] = one
        try:
            await asyncio.wait({call, self._death}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                call.cancel()
                self._death.result()
            return call.result()
        finally:
            del self._flying[one.rid]

    async def _score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        async def one(row: Sequence[int]) -> list[float]:
            async with self._places:
                reply = await self._http.post("/generate", scoring_body(row, 0), LOADING)
            score = score_of(reply, len(row) - 1)
            if score is None:
                raise RuntimeError(f"SGLang broke off a score: {reply['meta_info']['finish_reason']}")
            return [0.0, *score.log_probs]

        return await asyncio.gather(*map(one, rows))

    async def _abort(self, futures: list[Future[Completion]]) -> None:
        chosen = [self._asked[future] for future in futures if future in self._asked]
        for one in chosen:
            one.unwanted = True
            if one.rid not in self._flying:
                self._settle(one, one.completion(Finish("abort")))
        while any(one.future in self._asked for one in chosen):
            await self._break_off([one for one in chosen if one.rid in self._flying])

    async def _hold(self, why: str) -> None:
        """No new call; returns when the last one is back."""
        self._holds.add(why)
        self._go.clear()
        while self._flying:
            await self._break_off(list(self._flying.values()))

    async def _lie_down(self) -> None:
        if self._asked:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        await self._hold("sleep")

    async def _release(self, why: str) -> None:
        self._holds.discard(why)
        if not self._holds:
            self._go.set()

    async def _break_off(self, calls: list[Asked]) -> None:
        """Ask the server to, and give it a moment. Once may be too early, when a call has not reached it yet."""

        async def one(rid: str) -> None:
            async with self._errands:
                await self._http.post("/abort_request", {"rid": rid}, ANSWERING)

        rids = [call.rid for call in calls]
        with contextlib.suppress(EngineDied):  # then the calls themselves end, and say why
            await asyncio.gather(*map(one, rids))
        end = time.monotonic() + POLL
        while time.monotonic() < end and any(rid in self._flying for rid in rids):
            await asyncio.sleep(POLL / 20)

    async def _flush(self) -> None:
        """Empty the prefix cache. The server refuses until it knows itself that its last request has ended."""
        end = time.monotonic() + ANSWERING
        while True:
            try:
                await self._http.post("/flush_cache", {}, ANSWERING)
                return
            except Refused:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(POLL)

    async def _watch(self) -> None:
        """A server whose process ends, or that answers no more while it should make tokens, is dead."""
        missed, looked = 0, time.monotonic()
        while True:
            await asyncio.sleep(POLL)
            try:
                if self._server is not None:
                    self._server.check()
                if self._flying and time.monotonic() - looked > WATCHING:
                    looked = time.monotonic()
                    await self._http.get("/health", ANSWERING)
                    missed = 0
            except (EngineDied, Refused) as error:
                missed += 1
                gone = self._server is not None and self._server.process.poll() is not None
                if gone or missed >= MISSES:
                    self._death.set_exception(EngineDied(str(error)))
                    self._death.exception()  # seen, even if nobody waits
                    return

    async def _end(self) -> None:
        for one in list(self._asked.values()):
            self._settle(one, RuntimeError("the engine was closed"))
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def most_connections() -> int:
    """Each is an open file, and a process may have so many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(1, soft - SPARE_FILES)
