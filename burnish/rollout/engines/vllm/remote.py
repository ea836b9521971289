"""RemoteCore: the interface of library.Core for a vLLM server, which generates whether or not `step` is called.

Every request is a streamed HTTP call in the event loop of a separate thread; its outputs are queued for `step`.
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
from burnish.rollout.engines.process import ServerProcess, server_key
from burnish.rollout.engines.vllm.library import StepOutput

# Seconds.
CALL_TIMEOUT = 60.0  # for calls that generate nothing
LOAD_TIMEOUT = 1800.0  # for new weights
POLL_INTERVAL = 0.05  # that `step` waits for an output
HEALTH_INTERVAL = 10.0  # between two health checks while there are no outputs

PAUSE_CHECKS = 3  # calls to a paused server: its single event loop sends pending tokens before it answers them
GENERATE = "/inference/v1/generate"
SUPPORTED = "0.32"  # the only version whose server has the token-in, token-out API


class RemoteCore:
    in_this_process = False

    def __init__(self, url: str, process: ServerProcess | None, timeout: float, key: str) -> None:
        self.process = process
        self._http = HttpClient(url, server_key(process))
        self._outputs: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
        self._calls: dict[str, asyncio.Task] = {}
        self._last_output = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="burnish-vllm-server", daemon=True)
        self._thread.start()
        try:
            self._do(self._wait_until_healthy(timeout))
            self._check_server(key)
        except BaseException:
            self.close()
            raise

    def add(
        self,
        name: str,
        ids: Sequence[int],
        fields: dict[str, Any],
        bad_words: Sequence[Sequence[int]],
        priority: int,
        images: Sequence[Any] = (),
    ) -> None:
        assert not images  # the server's engine refuses them
        params = dict(fields)
        if params.get("logprobs"):
            params["logprobs"] += 1  # the server counts the sampled token too
        if bad_words:
            params["logit_bias"] = {str(word[0]): -100.0 for word in bad_words}
        scores = "prompt_logprobs" in fields
        body = {"token_ids": list(ids), "sampling_params": params, "stream": not scores, "priority": priority}
        call = self._score(name, ids, body) if scores else self._generate(name, body)
        self._loop.call_soon_threadsafe(self._begin, name, call)

    def step(self) -> list[StepOutput]:
        """Outputs since the last call; waits briefly for the first."""
        with contextlib.suppress(queue.Empty):
            outputs = [self._outputs.get(timeout=POLL_INTERVAL)]
            while not self._outputs.empty():
                outputs.append(self._outputs.get())
            self._last_output = time.monotonic()
            death = next((output.error for output in outputs if isinstance(output.error, EngineDied)), None)
            if death is not None:
                raise death
            return outputs
        if self.process is not None:
            self.process.check()
        if self._calls and time.monotonic() - self._last_output > HEALTH_INTERVAL:
            self._do(self._http.get("/health", CALL_TIMEOUT))
            self._last_output = time.monotonic()
        return []

    def abort(self, names: Sequence[str]) -> None:
        """The server aborts a request whose connection is closed."""
        self._do(self._cancel([self._calls[name] for name in names if name in self._calls]))

    def rpc(self, method: str, *arguments: Any) -> None:
        self._post("/collective_rpc", {"method": method, "args": list(arguments)}, LOAD_TIMEOUT)

    def pause(self) -> list[StepOutput]:
        """Pause the server; returns the outputs that were in flight."""
        self._post("/pause?mode=keep")
        for _ in range(PAUSE_CHECKS):
            self._do(self._http.get("/health", CALL_TIMEOUT))
        outputs = []
        while more := self.step():
            outputs += more
        return outputs

    def resume(self) -> None:
        self._post("/resume")

    def set_version(self, version: int) -> None:
        """The last output of a response reports each token's version, because the server may queue tokens of two."""
        self._post("/update_weight_version", {"new_version": str(version)})

    def reset_prefix_cache(self, running: bool) -> None:
        self._post(f"/reset_prefix_cache?reset_running_requests={str(running).lower()}")

    def forget_images(self) -> None:
        """Nothing to do: servers are shown none."""

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

    def _post(self, path: str, body: dict[str, Any] | None = None, limit: float = CALL_TIMEOUT) -> Any:
        return self._do(self._http.post(path, body or {}, limit))

    def _check_server(self, key: str) -> None:
        """A server that we did not start may be one that we cannot use."""
        version = self._do(self._http.get("/version", CALL_TIMEOUT))["version"]
        if not version.startswith(f"{SUPPORTED}."):
            problem = (
                f"the server runs vLLM {version}; only {SUPPORTED} has the token-in, token-out API that Burnish needs"
            )
            raise UserError(problem, key=key, value=self._http.url, hint="actor_rollout_ref.rollout.mode=sync")
        try:
            self.rpc("burnish_prepare")
        except Refused as refused:
            problem = f"the server was started without Burnish's worker extension ({refused})"
            raise UserError(
                problem, key=key, value=self._http.url, hint="see docs/engines.md for how to start one"
            ) from refused

    # in the event loop

    def _begin(self, name: str, call: Coroutine[Any, Any, None]) -> None:
        task = self._calls[name] = self._loop.create_task(call)
        task.add_done_callback(lambda _: self._calls.pop(name, None))

    async def _generate(self, name: str, body: dict[str, Any]) -> None:
        ended = False
        try:
            async for event in events(self._http, GENERATE, body):
                choice = event["choices"][0]
                ended = choice["finish_reason"] is not None
                self._outputs.put(step_output(name, choice, ended))
            if not ended:
                raise EngineDied(f"{self._http.url} closed the connection in the middle of a response")
        except (EngineDied, Refused) as error:
            self._fail(name, error)

    async def _score(self, name: str, ids: Sequence[int], body: dict[str, Any]) -> None:
        try:
            reply = await self._http.post(GENERATE, body)
            entries = zip(ids[1:], reply["prompt_logprobs"][1:], strict=True)
            log_probs = [0.0, *(entry[str(token)]["logprob"] for token, entry in entries)]
            self._outputs.put(StepOutput(name, [], [], [], 0, log_probs, True))
        except (EngineDied, Refused) as error:
            self._fail(name, error)

    def _fail(self, name: str, error: EngineDied | Refused) -> None:
        """End a request. A server that failed inside says no more than that; the cause is in its log."""
        failed = isinstance(error, Refused) and error.status >= 500
        cause = self.process.first_error() if failed and self.process is not None else None
        if cause is not None:
            error.add_note(f"first error in the server's log: {cause}")
        self._outputs.put(StepOutput(name, [], [], [], 0, None, True, error))

    async def _cancel(self, tasks: list[asyncio.Task]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_until_healthy(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:
            if self.process is not None:
                self.process.check()
            try:
                await self._http.get("/health", CALL_TIMEOUT)
                return
            except (EngineDied, Refused) as error:
                if time.monotonic() > end:
                    log = "" if self.process is None else f". Last lines of its log:\n{self.process.log_tail()}"
                    problem = f"no vLLM server answered at {self._http.url} within {timeout:g} s"
                    raise EngineDied(f"{problem} ({error}){log}") from error
            await asyncio.sleep(POLL_INTERVAL)


def step_output(name: str, choice: dict[str, Any], ended: bool) -> StepOutput:
    content = choice["logprobs"]["content"] if choice["logprobs"] else []
    top = [[(entry["token_id"], entry["logprob"]) for entry in place["top_logprobs"]] for place in content]
    return StepOutput(
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
    """For every token; None before the last output, and while the server has the weights it was started with."""
    if not spans or not all(span["version"].isdecimal() for span in spans):
        return None
    return [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


async def events(http: HttpClient, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events. Leaving the iteration early closes the connection, which aborts the request."""
    async for line in http.lines(path, body):
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            event = json.loads(line[6:])
            if "error" in event:
                raise Refused(path, event["error"].get("code", 500), event["error"].get("message", str(event)))
            yield event
