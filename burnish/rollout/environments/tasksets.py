"""verifiers.v1: tasksets and agents of the library's second generation, in versions 0.3.1 and 0.4.

environment=verifiers_v1 environment_kwargs.id=my_taskset: a module that exports a Taskset

The library starts an agent (a harness) that asks an OpenAI-compatible endpoint for every turn. Here that endpoint hands
the messages to the conversation and waits for the model's turn, so that exactly the sampled tokens are trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.chat.template import Message
from burnish.rollout.chat.tool_calls import TOOL_PARSERS
from burnish.rollout.environments.environment import KEY, StepResult, WholePrompt, numbers, required
from burnish.rollout.environments.rows import new_row
from burnish.rollout.environments.verifiers import TOOL_PROMPT, described, message_of, verifiers_v1
from burnish.rollout.tools.execution import LoopThread

MODEL = "policy"
MAX_TASKS = 100_000  # that are read of a taskset
MAX_HEAD, MAX_BODY = 2**16, 2**26  # bytes of a request
START_SECONDS = 120.0
LOCAL_RUNTIMES = ("docker", "podman", "apptainer", "subprocess")  # `subprocess` isolates nothing


class TasksetEnvironment:
    """A task of the taskset. The trace's reward is that of the last turn.

    `config` is the library's [env] block: `{agent: {harness: {id: "null"}}, taskset: {...}}`. `format` is how the model
    writes tool calls; `tool_prompt` describes the agent's tools to it.
    """

    def __init__(
        self, id: str, config: Mapping[str, Any] | None = None, format: str = "hermes", tool_prompt: str = TOOL_PROMPT
    ) -> None:
        self.gateway = gateway(id, json.dumps(config or {}, sort_keys=True))
        self.format = TOOL_PARSERS[format].load()
        self.tool_prompt = tool_prompt
        self.prompt: list[Any] = []  # what the newest turn is an answer to
        self.tools: list[dict[str, Any]] = []
        self.conversation: Conversation | None = None

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        required(kwargs, "id", "my_taskset")
        TasksetEnvironment(**kwargs)

    @staticmethod
    def rows(kwargs: Mapping[str, Any], size: int, seed: int) -> Iterator[dict[str, Any]]:
        """The tasks of the taskset, from number `seed` on."""
        tasks = TasksetEnvironment(**kwargs).gateway.tasks
        for number in range(min(size, len(tasks))):
            index = (seed + number) % len(tasks)
            messages = _messages_of_task(tasks[index].data)
            yield new_row("verifiers_v1", messages, "", number, {"seed": index}, "train")

    async def reset(self, seed: int, row: Mapping[str, Any]) -> WholePrompt:
        tasks = self.gateway.tasks
        self.conversation = Conversation(self.gateway, tasks[seed % len(tasks)])
        asked = await self._in_thread(self.conversation.start())
        if asked is None:
            raise EpisodeFailed(f"the agent ended before its first turn{self.conversation.problem()}")
        self.prompt, self.tools = asked["messages"], asked.get("tools") or []
        return WholePrompt(described([message_of(m) for m in self.prompt], self.tools, self.tool_prompt))

    async def step(self, action: str) -> StepResult:
        conversation = self.conversation
        assert conversation is not None
        asked, seen = await self._in_thread(conversation.answer(self._message(action))), len(self.prompt)
        if asked is None:
            problem, (reward, metrics) = conversation.problem(), conversation.score()
            if problem:
                raise EpisodeFailed(f"the agent failed{problem}")
            return StepResult("", reward, True, metrics)
        prompt = asked["messages"]
        if prompt[:seen] != self.prompt or len(prompt) <= seen + 1 or prompt[seen].get("role") != "assistant":
            raise EpisodeFailed("the agent rewrites the conversation, which is not supported")
        self.prompt = prompt
        return StepResult([message_of(message) for message in prompt[seen + 1 :]])

    async def close(self) -> None:
        if self.conversation is not None:
            await self._in_thread(self.conversation.close())

    async def _in_thread(self, coroutine: Any) -> Any:
        return await asyncio.wrap_future(self.gateway.thread.submit(coroutine))

    def _message(self, text: str) -> dict[str, Any]:
        """A turn as the endpoint answers it."""
        parsed = self.format(self.tools).parse(text) if self.tools else None
        if parsed is None or not parsed.calls:
            return {"role": "assistant", "content": text}
        calls = [
            {
                "id": call.id or f"call{number:05d}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(parsed.calls)
        ]
        return {"role": "assistant", "content": parsed.content, "tool_calls": calls}


class Conversation:
    """One episode of the library. Its methods run in the gateway's thread."""

    def __init__(self, gateway: Gateway, task: Any) -> None:
        self.gateway = gateway
        self.task = task
        self.id = f"c{next(gateway.numbers)}"
        self.requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.turn: asyncio.Future[dict[str, Any]] | None = None  # what the endpoint waits for
        self.episode: asyncio.Task[Any] | None = None

    async def start(self) -> dict[str, Any] | None:
        """The agent's first request."""
        context = await self.gateway.context(self.id)
        self.gateway.conversations[self.id] = self
        self.episode = asyncio.create_task(self.gateway.environment.run_episode(self.task, context))
        return await self._next()

    async def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer the request; the next one, or None at the end of the episode."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(message)
        return await self._next()

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The endpoint got a request: hand it over and wait for the turn."""
        if self.turn is not None and not self.turn.done():
            raise ValueError("one request at a time: the last one is not answered yet")
        self.turn = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(body)
        return await self.turn

    async def close(self) -> None:
        self.gateway.conversations.pop(self.id, None)
        if self.turn is not None:
            self.turn.cancel()
        if self.episode is not None and not self.episode.done():
            self.episode.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.episode

    async def _next(self) -> dict[str, Any] | None:
        assert self.episode is not None
        asked = asyncio.ensure_future(self.requests.get())
        await asyncio.wait({asked, self.episode}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        return None

    def _result(self) -> Any:
        assert self.episode is not None
        return self.episode.result()

    def problem(self) -> str:
        """ ": what went wrong", or nothing."""
        episode = self._result()
        errors = [error for part in (episode, *episode.traces) for error in part.errors]
        return "" if episode.ok or not errors else f": {errors[-1].type}: {errors[-1].message}"

    def score(self) -> tuple[float, dict[str, float]]:
        """Reward and metrics of the agent that the policy plays."""
        traces = self._result().traces
        return (float(traces[0].reward), numbers(traces[0].metrics)) if traces else (0.0, {})


class Gateway:
    """An environment of the library in a thread of its own, and the endpoint at which its agents find the model."""

    def __init__(self, environment: Any, tasks: list[Any]) -> None:
        self.environment = environment
        self.tasks = tasks
        self.thread = LoopThread("verifiers-v1")
        self.conversations: dict[str, Conversation] = {}
        self.numbers = itertools.count()
        self._secret = secrets.token_urlsafe(16)  # others on this machine must not answer for the model
        self._starting: asyncio.Task[int] | None = None

    async def context(self, conversation: str) -> Any:
        """Where an agent finds the model of this conversation."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        port = await asyncio.wait_for(asyncio.shield(self._starting), START_SECONDS)
        library = verifiers_v1()
        url = f"http://127.0.0.1:{port}/{self._secret}/{conversation}/v1"
        return library.ModelContext(MODEL, library.EvalClientConfig(base_url=url, api_key_var="BURNISH_NO_KEY"))

    async def _start(self) -> int:
        """Open the endpoint and the environment; they live as long as the process."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        self._serving = self.environment.serving()
        await self._serving.__aenter__()
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        try:
            status, kind, body = await self._respond(reader)
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            return  # the agent has gone
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return _error("413 Payload Too Large", f"a request needs a length of at most {MAX_BODY} bytes")
        body = await reader.readexactly(int(length))
        parts = head[0].split(" ")[1].split("/") if " " in head[0] else []
        if len(parts) < 3 or not secrets.compare_digest(parts[1].encode(), self._secret.encode()):
            return _error("404 Not Found", "no such conversation")
        conversation = self.conversations.get(parts[2])
        if conversation is None or parts[-2:] != ["chat", "completions"]:
            return _error("404 Not Found", "only chat completions of running conversations are served")
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
                raise ValueError("no list of messages")
            message = await conversation.ask(asked)
        except (ValueError, RecursionError) as error:
            return _error("400 Bad Request", str(error))
        except asyncio.CancelledError:
            return _error("410 Gone", "the conversation has ended")
        return _completion(message, asked.get("stream") is True)


@lru_cache(16)
def gateway(id: str, config: str) -> Gateway:
    """Loads the environment, which all conversations share; `config` as JSON."""
    library, key = verifiers_v1(), f"{KEY}_kwargs.id"
    block = json.loads(config)
    taskset = {**(block.get("taskset") or {}), "id": id}
    try:
        environment = library.load_environment(library.resolve_env_config({**block, "taskset": taskset}))
        tasks = list(itertools.islice(environment.taskset, MAX_TASKS))
    except Exception as error:  # an environment is somebody's program and may raise anything
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise UserError(problem, key=key, value=id) from error
    if not tasks:
        raise UserError("the taskset has no tasks", key=key, value=id)
    _check_runtimes(environment.config, library.AgentConfig)
    return Gateway(environment, tasks)


def _check_runtimes(config: Any, agent_config: type) -> None:
    """The endpoint is on this machine, so the agents have to be. The library's default runtime is not."""
    for name in type(config).model_fields:
        agent = getattr(config, name)
        runtime = agent.runtime.type if isinstance(agent, agent_config) else None
        if runtime is not None and runtime not in LOCAL_RUNTIMES:
            key = f"{KEY}_kwargs.config.{name}.runtime.type"
            problem = "the agent would run on another machine, from which it cannot reach the model"
            raise UserError(problem, key=key, value=runtime, allowed=list(LOCAL_RUNTIMES), hint=f"{key}=docker")


def _completion(message: dict[str, Any], stream: bool) -> tuple[str, str, bytes]:
    """A chat completion as OpenAI's interface writes it, whole or as a stream of one piece."""
    reason = "tool_calls" if "tool_calls" in message else "stop"
    named = {"id": "turn", "created": int(time.time()), "model": MODEL}
    if not stream:
        usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
        choice = {"index": 0, "message": message, "finish_reason": reason}
        whole = {**named, "object": "chat.completion", "choices": [choice], "usage": usage}
        return "200 OK", "application/json", json.dumps(whole).encode()
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    piece = {**named, "object": "chat.completion.chunk"}
    piece["choices"] = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return "200 OK", "text/event-stream", f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n".encode()


def _error(status: str, text: str) -> tuple[str, str, bytes]:
    return status, "application/json", json.dumps({"error": {"message": text}}).encode()


def _messages_of_task(data: Any) -> list[Message]:
    """What the agent will ask first, as far as the task tells. `reset` replaces it by what the agent does ask."""
    prompt = data.prompt
    messages = [{"role": "user", "content": prompt or ""}] if prompt is None or isinstance(prompt, str) else prompt
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return [*system, *map(message_of, messages)]
