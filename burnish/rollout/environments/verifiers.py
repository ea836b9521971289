"""verifiers: environments of the library's Environment classes (SingleTurnEnv, MultiTurnEnv, ToolEnv and others).

environment=verifiers environment_kwargs.id=my_env: a module with `load_environment`, or path/to/file.py:function
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.agents.user_files import load_class
from burnish.rollout.chat.template import Message
from burnish.rollout.chat.tool_calls import TOOL_PARSERS
from burnish.rollout.environments.environment import KEY, StepResult, WholePrompt, import_library, numbers, required
from burnish.rollout.environments.rows import new_row

TOOL_PROMPT = (
    "You may call these tools:\n<tools>\n{schemas}\n</tools>\nFor each call, write a JSON object with its name and"
    ' arguments:\n<tool_call>\n{{"name": ..., "arguments": ...}}\n</tool_call>'
)


@import_library
def verifiers() -> Any:
    import verifiers

    if not hasattr(verifiers, "Environment"):  # 0.4 has only verifiers.v1
        raise ImportError(
            "0.3 was the last version with Environment classes; for a taskset use environment=verifiers_v1"
        )
    return verifiers


@import_library
def verifiers_v1() -> Any:
    import verifiers.v1

    return verifiers.v1


class VerifiersEnvironment:
    """A row of the environment's dataset. The rubric's reward is that of the last turn.

    The library's environments call a model themselves; here that call waits for the model's turn. `args` are arguments
    of load_environment. `format` is how the model writes tool calls; `tool_prompt` describes the tools to it.
    """

    def __init__(
        self, id: str, args: Mapping[str, Any] | None = None, format: str = "hermes", tool_prompt: str = TOOL_PROMPT
    ) -> None:
        self.environment = loaded(id, json.dumps(args or {}, sort_keys=True))
        self.schemas = [_schema(tool) for tool in self.environment.tool_defs or ()]
        self.parser = TOOL_PARSERS[format].load()(self.schemas)
        self.tool_prompt = tool_prompt
        self.prompt: list[Any] = []  # what the newest turn is an answer to
        self.rollout: asyncio.Task[Any] | None = None

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        required(kwargs, "id", "my_environment")
        environment = VerifiersEnvironment(**kwargs).environment
        if environment.requires_group_rollouts:
            problem = "its rubric scores groups of responses, which is not supported: use functions of one response"
            raise UserError(problem, key=f"{KEY}_kwargs.id", value=kwargs["id"])

    @staticmethod
    def rows(kwargs: Mapping[str, Any], size: int, seed: int) -> Iterator[dict[str, Any]]:
        """The rows of the dataset, from number `seed` on."""
        made = VerifiersEnvironment(**kwargs)
        data = made.environment.get_dataset()
        for number in range(min(size, len(data))):
            index = (seed + number) % len(data)
            row = data[index]
            messages = made.messages_of(row["prompt"])
            yield new_row("verifiers", messages, str(row.get("answer", "")), number, {"seed": index}, "train")

    async def reset(self, seed: int, row: Mapping[str, Any]) -> WholePrompt:
        data = self.environment.get_dataset()
        self.client = waiting_client()
        self.rollout = asyncio.create_task(self._roll_out(dict(data[seed % len(data)])))
        prompt = await self._next_prompt()
        if prompt is None:
            raise EpisodeFailed("the environment ended before the first turn")
        self.prompt = prompt
        return WholePrompt(self.messages_of(prompt))

    async def step(self, action: str) -> StepResult:
        self.client.answer(self._response(action))
        prompt, seen = await self._next_prompt(), len(self.prompt)
        if prompt is None:
            assert self.rollout is not None
            state = self.rollout.result()
            return StepResult("", float(state.get("reward") or 0.0), True, numbers(state.get("metrics")))
        if prompt[:seen] != self.prompt or len(prompt) <= seen:
            raise EpisodeFailed("the environment rewrites the conversation, which is not supported")
        self.prompt = prompt
        return StepResult([message_of(message) for message in prompt[seen + 1 :]])

    async def close(self) -> None:
        if self.rollout is not None and not self.rollout.done():
            self.rollout.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.rollout

    async def _roll_out(self, row: dict[str, Any]) -> Any:
        """The library's own loop, to the score."""
        state = await self.environment.rollout(row, self.client, "policy", {})
        if state.get("error") is not None:
            raise EpisodeFailed(f"{type(state['error']).__name__}: {state['error']}")
        await self.environment.rubric.score_rollout(state)
        await self.environment.rubric.cleanup(state)
        return state

    async def _next_prompt(self) -> list[Any] | None:
        """What the environment asks the model next; None where it is done."""
        assert self.rollout is not None
        asked = asyncio.ensure_future(self.client.prompts.get())
        await asyncio.wait({asked, self.rollout}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        self.rollout.result()  # raises what went wrong
        return None

    def messages_of(self, prompt: Any) -> list[Message]:
        """The first messages, with a description of the tools where there are some."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [message_of(m) for m in prompt]
        return described(messages, self.schemas, self.tool_prompt)

    def _response(self, text: str) -> Any:
        """A turn as the library's clients return it."""
        types = verifiers()
        parsed = self.parser.parse(text) if self.schemas else None
        calls = [
            types.ToolCall(id=call.id or f"call{number:05d}", name=call.name, arguments=json.dumps(call.arguments))
            for number, call in enumerate(parsed.calls if parsed is not None else ())
        ]
        message = types.ResponseMessage(
            role="assistant",
            content=parsed.content if parsed is not None and calls else text,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return types.Response(id="turn", created=0, model="policy", message=message)


@lru_cache(16)
def loaded(id: str, args: str) -> Any:
    """The library's environment, which all conversations share; `args` as JSON."""
    arguments, key = json.loads(args), f"{KEY}_kwargs.id"
    library = verifiers()
    make = load_class(id, key=key, where="the environment") if ":" in id else None
    try:
        environment = library.load_environment(id, **arguments) if make is None else make(**arguments)
        environment.get_dataset(1)
    except Exception as error:  # an environment is somebody's program and may raise anything
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise UserError(problem, key=key, value=id) from error
    return environment


def waiting_client() -> Any:
    """A client of the library that hands prompts over and waits for the turns."""

    class WaitingClient(verifiers().Client):
        def __init__(self) -> None:
            super().__init__(None)
            self.prompts: asyncio.Queue[Any] = asyncio.Queue()
            self.turns: asyncio.Queue[Any] = asyncio.Queue()

        def answer(self, response: Any) -> None:
            self.turns.put_nowait(response)

        async def get_response(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            self.prompts.put_nowait(list(prompt))
            return await self.turns.get()

        def setup_client(self, config: Any) -> None:
            return None

        async def close(self) -> None: ...

        async def to_native_tool(self, tool: Any) -> Any: ...
        async def to_native_prompt(self, messages: Any) -> Any: ...
        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def from_native_response(self, response: Any) -> Any: ...

    return WaitingClient()


def _schema(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def described(messages: list[Message], schemas: list[dict[str, Any]], tool_prompt: str) -> list[Message]:
    """The messages, with a description of the tools in the system message where there are tools."""
    if not schemas or not tool_prompt:
        return messages
    text = tool_prompt.format(schemas="\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas))
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def message_of(message: Any) -> Message:
    """A message of the library as role and text."""
    fields = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    content = fields.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    given: Message = {"role": fields["role"], "content": content}
    return given | ({"tool_call_id": fields["tool_call_id"]} if fields.get("tool_call_id") else {})
