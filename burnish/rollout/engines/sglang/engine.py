"""SglangEngine: SGLang's HTTP server through its native /generate call, with token ids.

One thread runs an event loop in which every response is a task. The server is started by us and ends with us, or runs
already (engine_kwargs.sglang.base_url).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import (
    Capabilities,
    Completion,
    EngineDied,
    EngineOptions,
    Request,
    check_requests,
    check_sampling,
    token_rows,
)
from burnish.rollout.engines.checkpoint_stream import Weights
from burnish.rollout.engines.environment import python_of
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.process import server_key
from burnish.rollout.engines.sglang.requests import RunningRequest, find_end, refusals, score_of, scoring_body
from burnish.rollout.engines.sglang.server import (
    CALL_TIMEOUT,
    POLL_INTERVAL,
    Server,
    check_server,
    launch_arguments,
    wait_for_server,
)
from burnish.rollout.engines.sglang.weights import WEIGHT_SYNCS, weight_sync_method
from burnish.rollout.stop import Finish

# Seconds.
START_TIMEOUT, ATTACH_TIMEOUT = 600.0, 60.0  # until a server answers: one that we start, a running one
LOAD_TIMEOUT = 1800.0  # for new weights
HEALTH_INTERVAL = 10.0  # between two health checks of a server that generates

MAX_MISSED = 3  # health checks in a row: the server is dead
MAX_SHORT_CALLS = 32  # concurrent
SPARE_FILES = 128  # that this process may open besides its long calls


class SglangEngine:
    """Methods may be called from any thread; the work happens in the event loop of the engine's own thread."""

    check = staticmethod(check_server)
    refusals = staticmethod(refusals)

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.eos_ids = frozenset(options.eos_ids)
        self.version = 0
        self.counts: defaultdict[str, float] = defaultdict(int)
        self.closed = False
        self._holds: set[str] = set()  # why generation is on hold: pause, sleep, load
        self._sleep_level = 0
        self._requests: dict[Future[Completion], RunningRequest] = {}
        self._calls: dict[str, RunningRequest] = {}  # in progress at the server, by rid
        check_server(options.extra, options.device, options.section)
        python = python_of(options.extra)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(options.devices)} if options.devices else {}
        self._server = None if "base_url" in options.extra else Server(launch_arguments(options), python, visible)
        url = options.extra["base_url"] if self._server is None else self._server.url
        self._http = HttpClient(url, server_key(self._server))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-sglang-engine", daemon=True)
        self._thread.start()
        try:
            self._weight_sync = WEIGHT_SYNCS[weight_sync_method(options.extra, options.device, options.section)]
            self.capabilities = self._do(self._prepare())
            self._weights = Weights(options.model)
        except BaseException:
            self.close()
            raise

    async def _prepare(self) -> Capabilities:
        """Wait until the server is healthy; returns its capabilities."""
        self._go = asyncio.Event()
        self._go.set()
        self._death: asyncio.Future[None] = self._loop.create_future()
        self._slots = asyncio.Semaphore(min(self.options.max_num_seqs, max_connections()))
        self._short_calls = asyncio.Semaphore(MAX_SHORT_CALLS)
        timeout = self.options.extra.get("start_timeout", ATTACH_TIMEOUT if self._server is None else START_TIMEOUT)
        info = await wait_for_server(self._http, self._server, timeout)
        context = info.get("context_length")
        if context is not None and context < self.options.max_model_len:
            key, value = f"{self.options.section}.max_model_len", self.options.max_model_len
            raise UserError("exceeds the server's context length", key=key, value=value, allowed=f"up to {context}")
        self._watcher = self._loop.create_task(self._watch())
        self._sleeps = bool(info.get("enable_memory_saver"))
        deterministic = bool(info.get("enable_deterministic_inference"))  # else the server ignores seeds
        addressed = "request" if deterministic else "none"
        return Capabilities(
            addressed, invariant=deterministic, score=True, score_at=1.0, abort=True, sleep=self._sleeps
        )

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options)
        for sampling in {request.sampling for request in requests}:
            check_sampling(self, sampling, self.options.section)
        self._check_open()
        running = [RunningRequest(request, Future()) for request in requests]
        for one in running:
            one.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._loop.call_soon_threadsafe(self._begin, running)
        return [one.future for one in running]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        self._do(self._abort(list(futures)))

    def end_session(self, session: str) -> None:
        """The server's radix cache keeps what later turns share, and evicts it by itself."""

    def expect_return(self, session: str, seconds: float) -> None:
        """Sessions are ignored."""

    def pause(self) -> None:
        self._do(self._hold("pause"))

    def resume(self) -> None:
        self._do(self._release("pause"))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Running calls are aborted; their responses continue with the new weights."""
        self._do(self._hold("load"))
        try:
            if self._sleep_level == 2:
                self._memory("resume", "weights")
                self._sleep_level = 1
            self._weight_sync.load()(self._weights.stream(stream), self.options, self._post_weights)
            if not self._sleep_level:  # a sleeping server has no cache to drop
                self._do(self._flush())
            self.version = version
        finally:
            self._do(self._release("load"))

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        if temperature != self.capabilities.score_at:
            raise NotImplementedError("SGLang scores at temperature 1 only (capabilities.score_at)")
        return self._do(self._score(token_rows(rows)))

    def sleep(self, level: int = 1) -> None:
        self._do(self._hold_for_sleep())
        if self._sleeps:
            self._do(self._flush())
            self._memory("release", *(["kv_cache", "weights"] if level >= 2 else ["kv_cache"]))
            self._sleep_level = min(level, 2)
        self.counts["sleeps"] += 1

    def wake(self) -> None:
        if self._sleep_level:
            self._memory("resume", *(["weights", "kv_cache"] if self._sleep_level == 2 else ["kv_cache"]))
            self._sleep_level = 0
        self._do(self._release("sleep"))

    def stats(self) -> dict[str, float]:
        counts = dict(self.counts)
        self.counts = defaultdict(int)
        return counts

    def step(self) -> bool:
        return False

    def close(self) -> None:
        """Unfinished requests fail."""
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
        return self._do(self._http.post(path, body, LOAD_TIMEOUT))

    def _memory(self, action: str, *tags: str) -> None:
        self._do(self._http.post(f"/{action}_memory_occupation", {"tags": list(tags)}, CALL_TIMEOUT))

    # in the engine's thread

    def _begin(self, running: list[RunningRequest]) -> None:
        for one in sorted(running, key=lambda one: one.request.priority):
            self._requests[one.future] = one
            one.task = self._loop.create_task(self._run(one))

    async def _run(self, one: RunningRequest) -> None:
        """From the request to its completion, in as many calls as pauses make necessary."""
        try:
            end = None
            while end is None:
                async with self._slots:
                    await self._go.wait()
                    end = Finish("abort") if one.aborted else await self._generate(one)
            self._complete(one, one.completion(end))
        except Exception as error:  # without this, the caller would wait forever
            self._complete(one, error)

    def _complete(self, one: RunningRequest, outcome: Completion | Exception) -> None:
        if self._requests.pop(one.future, None) is None:
            return  # it was aborted, or the engine closed
        if isinstance(outcome, Completion):
            self.counts["tokens"] += len(outcome.ids)
            self.counts["finished"] += 1
            one.future.set_result(outcome)
        else:
            one.future.set_exception(outcome)

    async def _generate(self, one: RunningRequest) -> Finish | None:
        """One call, and a second one for log-probs that penalties have changed; None if the call was aborted."""
        sampling, version, num_before = one.request.sampling, self.version, len(one.ids)
        reply = await self._call(one, one.body(sorted(self.eos_ids), self.capabilities.addressed != "none"))
        self.counts["prompt_tokens"] += reply["meta_info"].get("prompt_tokens", 0)
        self.counts["prefix_hit_tokens"] += reply["meta_info"].get("cached_tokens", 0)
        end = one.take(reply, version)
        ours = find_end(one.ids, num_before, sampling, self.eos_ids, self.options.decode)
        if ours is not None:
            length, end = ours
            one.truncate(length)
        if end is None and one.aborted:
            end = Finish("abort")
        if end is None and not self._holds:
            raise RuntimeError(f"SGLang aborted a response: {reply['meta_info']['finish_reason']}")
        if sampling.looks_back and (end is None or not await self._score_again(one)):
            one.restart()
            return None
        return end

    async def _score_again(self, one: RunningRequest) -> bool:
        """Replace the log-probs; False if the call was aborted."""
        if not one.ids:
            return True
        prompt = one.request.input.ids
        body = scoring_body([*prompt, *one.ids], len(prompt), one.request.sampling.logprobs or 0)
        one.rid = body["rid"]
        score = score_of(await self._call(one, body), len(one.ids))
        if score is not None:
            one.log_probs, one.top = score.log_probs, score.top
        return score is not None

    async def _call(self, one: RunningRequest, body: dict[str, Any]) -> dict[str, Any]:
        """The reply; raises if the server dies first. It may take hours, so `_watch` replaces a time limit."""
        call = self._loop.create_task(self._http.post("/generate", body))
        self._calls[one.rid] = one
        try:
            await asyncio.wait({call, self._death}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                call.cancel()
                self._death.result()
            return call.result()
        finally:
            del self._calls[one.rid]

    async def _score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        async def one(row: Sequence[int]) -> list[float]:
            async with self._slots:
                reply = await self._http.post("/generate", scoring_body(row, 0), LOAD_TIMEOUT)
            score = score_of(reply, len(row) - 1)
            if score is None:
                raise RuntimeError(f"SGLang aborted a score: {reply['meta_info']['finish_reason']}")
            return [0.0, *score.log_probs]

        return await asyncio.gather(*map(one, rows))

    async def _abort(self, futures: list[Future[Completion]]) -> None:
        chosen = [self._requests[future] for future in futures if future in self._requests]
        for one in chosen:
            one.aborted = True
            if one.rid not in self._calls:
                self._complete(one, one.completion(Finish("abort")))
        while any(one.future in self._requests for one in chosen):
            await self._abort_calls([one for one in chosen if one.rid in self._calls])

    async def _hold(self, reason: str) -> None:
        """Start no calls, and abort those in progress; returns when there are none."""
        self._holds.add(reason)
        self._go.clear()
        while self._calls:
            await self._abort_calls(list(self._calls.values()))

    async def _hold_for_sleep(self) -> None:
        if self._requests:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        await self._hold("sleep")

    async def _release(self, reason: str) -> None:
        self._holds.discard(reason)
        if not self._holds:
            self._go.set()

    async def _abort_calls(self, calls: list[RunningRequest]) -> None:
        """Ask the server to abort them, and wait a moment. Callers repeat it: a call may not have reached it yet."""

        async def abort(rid: str) -> None:
            async with self._short_calls:
                await self._http.post("/abort_request", {"rid": rid}, CALL_TIMEOUT)

        rids = [call.rid for call in calls]
        with contextlib.suppress(EngineDied):  # then the calls themselves fail
            await asyncio.gather(*map(abort, rids))
        end = time.monotonic() + POLL_INTERVAL
        while time.monotonic() < end and any(rid in self._calls for rid in rids):
            await asyncio.sleep(POLL_INTERVAL / 20)

    async def _flush(self) -> None:
        """Empty the prefix cache. The server refuses while it still counts a request as running."""
        end = time.monotonic() + CALL_TIMEOUT
        while True:
            try:
                await self._http.post("/flush_cache", {}, CALL_TIMEOUT)
                return
            except Refused:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(POLL_INTERVAL)

    async def _watch(self) -> None:
        """Detect a dead server: its process has exited, or it misses health checks while it should generate."""
        missed, last_check = 0, time.monotonic()
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            try:
                if self._server is not None:
                    self._server.check()
                if self._calls and time.monotonic() - last_check > HEALTH_INTERVAL:
                    last_check = time.monotonic()
                    await self._http.get("/health", CALL_TIMEOUT)
                    missed = 0
            except (EngineDied, Refused) as error:
                missed += 1
                exited = self._server is not None and self._server.process.poll() is not None
                if exited or missed >= MAX_MISSED:
                    self._death.set_exception(EngineDied(str(error)))
                    self._death.exception()  # mark it as retrieved
                    return

    async def _end(self) -> None:
        for one in list(self._requests.values()):
            self._complete(one, RuntimeError("the engine was closed"))
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def max_connections() -> int:
    """Limited by the number of open files of a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(1, soft - SPARE_FILES)
