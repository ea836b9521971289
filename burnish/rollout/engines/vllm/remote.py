"""RemoteCore: what Core is in this process, of a vLLM server. It makes tokens whether or not somebody steps it.

Every request is a streamed HTTP call in the event loop of a thread of its own; what they bring waits for `step`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import EngineDied
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.process import ServerProcess
from burnish.rollout.engines.vllm.library import News

# Seconds.
ANSWERING = 60.0  # for a call that makes no token
LOADING = 1800.0  # for new weights
POLL = 0.05  # that `step` waits for something new
WATCHING = 10.0  # without anything new, between two looks at the server

SETTLING = 3  # questions to a paused server: its one loop sends the tokens it has made before it answers them
GENERATE = "/inference/v1/generate"
TESTED = "0.32"  # the only version whose server takes and gives tokens in this form


class RemoteCore:
    in_this_process = False

    def __init__(self, url: str, process: ServerProcess | None, patience: float, key: str) -> None:
        self.process = process
        self._http = HttpClient(url)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._calls: dict[str, asyncio.Task] = {}
        self._heard = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-vllm-server", daemon=True)
        self._thread.start()
        try:
            self._do(self._until_it_answers(patience))
            self._check_abilities(key)
        except BaseException:
            self.close()
            raise

    def add(
        self, name: str, ids: Sequence[int], fields: dict[str, Any], bad_words: Sequence[Sequence[int]], priority: int
    ) -> None:
        params = dict(fields)
        if params.get("logprobs"):
            params["logprobs"] += 1  # the server counts the sampled token among them
        if bad_words:
            params["logit_bias"] = {str(word[0]): -100.0 for word in bad_words}
        scores = "prompt_logprobs" in fields
        body = {"token_ids": list(ids), "sampling_params": params, "stream": not scores, "priority": priority}
        ask = self._score(name, ids, body) if scores else self._ask(name, body)
        self._loop.call_soon_threadsafe(self._begin, name, ask)

    def step(self) -> list[News]:
        """What came since the last look; nothing after a moment's wait is no reason to stay."""
        with contextlib.suppress(queue.Empty):
            found = [self._news.get(timeout=POLL)]
            while not self._news.empty():
                found.append(self._news.get())
            self._heard = time.monotonic()
            death = next((one.error for one in found if isinstance(one.error, EngineDied)), None)
            if death is not None:
                raise death
            return found
        if self.process is not None:
            self.process.check()
        if self._calls and time.monotonic() - self._heard > WATCHING:
            self._do(self._http.get("/health", ANSWERING))
            self._heard = time.monotonic()
        return []

    def abort(self, names: Sequence[str]) -> None:
        """A call that is broken off is one that the server drops."""
        self._do(self._cancel([self._calls[name] for name in names if name in self._calls]))

    def rpc(self, method: str, *arguments: str) -> None:
        self._post("/collective_rpc", {"method": method, "args": list(arguments)}, LOADING)

    def hold(self) -> list[News]:
        self._post("/pause?mode=keep")
        for _ in range(SETTLING):
            self._do(self._http.get("/health", ANSWERING))
        found = []
        while more := self.step():
            found += more
        return found

    def go_on(self) -> None:
        self._post("/resume")

    def label(self, version: int) -> None:
        """Tokens of two versions can wait in the server; at its end a response is told which are whose."""
        self._post("/update_weight_version", {"new_version": str(version)})

    def forget_prefixes(self, running: bool) -> None:
        self._post(f"/reset_prefix_cache?reset_running_requests={str(running).lower()}")

    def sleep(self, level: int) -> None:
        self._post(f"/sleep?level={level}")

    def wake(self, tags: list[str]) -> None:
        self._post("/wake_up?" + "&".join(f"tags={tag}" for tag in tags))

    def close(self) -> None:
        if self._thread.is_alive():
            self._do(self._cancel(list(self._calls.values())))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        if self.process is not None:
            self.process.close()

    # from the engine's thread

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _post(self, path: str, body: dict[str, Any] | None = None, limit: float = ANSWERING) -> Any:
        return self._do(self._http.post(path, body or {}, limit))

    def _check_abilities(self, key: str) -> None:
        """A server that somebody else started may not be one that we can use."""
        found = self._do(self._http.get("/version", ANSWERING))["version"]
        if not found.startswith(f"{TESTED}."):
            problem = f"the server is vLLM {found}; only {TESTED} is known to take and give tokens as Burnish needs it"
            raise UserError(problem, key=key, value=self._http.url, hint="actor_rollout_ref.rollout.mode=sync")
        try:
            self.rpc("burnish_prepare")
        except Refused as refused:
            problem = f"the server does not know Burnish ({refused})"
            raise UserError(
                problem, key=key, value=self._http.url, hint="see docs/engines.md for how to start one"
            ) from refused

    # in the thread of the calls

    def _begin(self, name: str, ask: Coroutine[Any, Any, None]) -> None:
        task = self._calls[name] = self._loop.create_task(ask)
        task.add_done_callback(lambda _: self._calls.pop(name, None))

    async def _ask(self, name: str, body: dict[str, Any]) -> None:
        ended = False
        try:
            async for event in events(self._http, GENERATE, body):
                choice = event["choices"][0]
                ended = choice["finish_reason"] is not None
                self._news.put(news_of(name, choice, ended))
            if not ended:
                raise EngineDied(f"{self._http.url} broke off a response")
        except (EngineDied, Refused) as error:
            self._news.put(News(name, [], [], [], 0, None, True, error))

    async def _score(self, name: str, ids: Sequence[int], body: dict[str, Any]) -> None:
        try:
            reply = await self._http.post(GENERATE, body, None)
            entries = zip(ids[1:], reply["prompt_logprobs"][1:], strict=True)
            found = [0.0, *(entry[str(token)]["logprob"] for token, entry in entries)]
            self._news.put(News(name, [], [], [], 0, found, True))
        except (EngineDied, Refused) as error:
            self._news.put(News(name, [], [], [], 0, None, True, error))

    async def _cancel(self, tasks: list[asyncio.Task]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_it_answers(self, patience: float) -> None:
        end = time.monotonic() + patience
        while True:
            if self.process is not None:
                self.process.check()
            try:
                await self._http.get("/health", ANSWERING)
                return
            except (EngineDied, Refused) as error:
                if time.monotonic() > end:
                    log = "" if self.process is None else f". The end of its log:\n{self.process.log_tail()}"
                    problem = f"no vLLM server answers at {self._http.url} after {patience:g} seconds"
                    raise EngineDied(f"{problem} ({error}){log}") from error
            await asyncio.sleep(POLL)


def news_of(name: str, choice: dict[str, Any], ended: bool) -> News:
    content = choice["logprobs"]["content"] if choice["logprobs"] else []
    top = [[(entry["token_id"], entry["logprob"]) for entry in place["top_logprobs"]] for place in content]
    return News(
        name=name,
        tokens=choice["token_ids"] or [],
        log_probs=[place["logprob"] for place in content],
        top=[sorted(pairs, key=lambda pair: -pair[1]) for pairs in top],
        num_cached=0,
        prompt_log_probs=None,
        finished=ended,
        versions=versions_of(choice.get("weight_versions")),
    )


def versions_of(spans: list[dict[str, Any]] | None) -> list[int] | None:
    """For every token; None before the end, and where the weights are those the server was started with."""
    if not spans or not all(span["version"].isdecimal() for span in spans):
        return None
    return [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


async def events(http: HttpClient, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """What the server sends, event by event. Leaving early closes the connection, and so ends the request."""
    async for line in http.lines(path, body):
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            event = json.loads(line[6:])
            if "error" in event:
                raise Refused(path, event["error"].get("code", 500), event["error"].get("message", str(event)))
            yield event
