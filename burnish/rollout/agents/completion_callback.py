"""verl's completion callbacks (0.4): a user's class that is called after each turn and may append messages.

In verl it talks to a chat server and its conversations are tokenized again; here the tokens of a turn are kept as they
were sampled, and only the messages that the callback appends are rendered.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.failure import EpisodeFailed, failed
from burnish.rollout.agents.limits import reached
from burnish.rollout.agents.sampling_params import sampling_fields, sampling_params
from burnish.rollout.agents.tool_agent import first_messages
from burnish.rollout.agents.user_files import load_class
from burnish.rollout.chat.forms import Message
from burnish.rollout.chat.history import AppendHistory, originals
from burnish.rollout.chat.pictures import read_content
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolParser
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.episode import Prompt, Sampler
from burnish.rollout.tools.execution import call_async
from burnish.rollout.trajectory import Trajectory

SUBMITTED = "__submitted__"  # in `info`: requests of the newest call


class Fields:
    """An object with these fields, as the OpenAI client returns them."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def model_dump(self, *, exclude_none: bool = False, **unused: Any) -> dict[str, Any]:
        values = {name: _plain(value) for name, value in vars(self).items()}
        return {name: value for name, value in values.items() if value is not None or not exclude_none}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.model_dump(exclude_none=True) if isinstance(value, Fields) else value


def chat_completion(id: str, text: str, turn: ParsedTurn, finish_reason: FinishReason) -> Fields:
    """A turn as OpenAI's ChatCompletion."""
    calls = [
        Fields(id=call.id, type="function", function=Fields(name=call.name, arguments=json.dumps(dict(call.arguments))))
        for call in turn.calls
    ]
    message = Fields(role="assistant", content=turn.content if calls else text, tool_calls=calls or None)
    reason = "tool_calls" if calls else finish_reason
    return Fields(id=id, object="chat.completion", choices=[Fields(index=0, message=message, finish_reason=reason)])


class Scheduler:
    """What a callback submits its next request to."""

    def __init__(self, context: AgentContext) -> None:
        self.tokenizer = context.tokenizer
        self.tool_schemas = context.toolbox.schemas()

    def submit_chat_completions(self, *, messages: list[Message], request_id: str, info: dict[str, Any]) -> None:
        """Sample another turn after these messages; the callback is called with it."""
        if info[SUBMITTED]:
            raise EpisodeFailed("the callback submitted two requests after one turn; a conversation has one")
        info["__depth__"] += 1
        info[SUBMITTED].append(messages)


@dataclass
class CallbackConversation:
    """The state of one conversation."""

    id: str
    messages: list[Message]  # the callback's list
    info: dict[str, Any]
    history: AppendHistory
    sampler: Sampler
    num_calls: int = 0
    num_user_turns: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)


class CallbackAgent:
    """An episode whose messages a user's callback appends."""

    uses_session = True
    scores = False

    def __init__(
        self, context: AgentContext, name: str, key: str, make_parser: Callable[[Sequence[Any]], ToolParser]
    ) -> None:
        from omegaconf import OmegaConf

        self.name = name
        cls = load_class(name, key=key, where=key)
        try:
            self.callback = cls(OmegaConf.create(dict(context.config)), Scheduler(context))
            schemas = list(getattr(self.callback, "tool_schemas", None) or [])
            extra = dict(getattr(self.callback, "extra_body", None) or {})
        except UserError:
            raise
        except Exception as error:  # a callback is the user's program and may raise anything
            problem = f"the callback cannot be created: {type(error).__name__}: {error}"
            raise UserError(problem, key=key, value=name) from error
        if not callable(self.callback):
            raise UserError("a callback needs `async def __call__(messages, completions, info)`", key=key, value=name)
        self.keeps_stop = bool(extra.get("include_stop_str_in_output"))
        self.sampling = sampling_fields(extra, f"{name}.extra_body")
        self.shows_own_tools = bool(schemas) and schemas != context.toolbox.schemas()
        if self.shows_own_tools:
            template = replace(context.template, tools=schemas, _boundaries={})
            context = replace(context, template=template, parser=make_parser(schemas))
        self.context = context

    async def run(self, prompt: Prompt, sampler: Sampler) -> list[Trajectory]:
        conversation = self._open(prompt, sampler)
        problem: str | None = None
        finish_reason: FinishReason = "stop"
        try:
            finish_reason = await self._converse(conversation)
        except EpisodeFailed as failure:
            problem = str(failure)
        history = conversation.history
        extras = {"num_turns": sum(len(row.turns) for row in history.rows) + 1}
        return history.trajectories(finish_reason, self.context.drift_of(history), extras=extras, problem=problem)

    def _open(self, prompt: Prompt, sampler: Sampler) -> CallbackConversation:
        messages = first_messages(prompt, self.context.decode)
        params = {**sampling_params(prompt.sampling), **self.sampling}
        info = {"__done__": asyncio.Event(), "__depth__": 1, "__sampling_params__": params, SUBMITTED: []}
        start = prompt.input
        if self.shows_own_tools:  # the data's prompt shows those of the run
            template = self.context.template
            start = template.input_with(template.render(messages), *originals(prompt.input))
            sampler = sampler.fork(0, start)
        history = self.context.history(self.context.template, start, prompt.row.get("raw_prompt"))
        conversation = CallbackConversation(f"{prompt.uid}-{prompt.seed:x}", messages, info, history, sampler)
        conversation.sampling = {**self.context.sampling_of(prompt), **self.sampling}
        return conversation

    async def _converse(self, conversation: CallbackConversation) -> FinishReason:
        limits, history = self.context.limits, conversation.history
        while True:
            completion = await conversation.sampler.generate(history.input, **conversation.sampling)
            text, turn = self._read(completion, conversation.num_calls)
            history.add_turn(completion, text, turn)
            conversation.num_calls += len(turn.calls)
            if completion.finish_reason == "abort":
                return "abort"
            answer = await self._call(
                conversation, chat_completion(conversation.id, text, turn, completion.finish_reason)
            )
            if answer is None:
                return completion.finish_reason
            if reached(limits.max_assistant_turns, history.num_sampled_turns) or reached(
                limits.max_user_turns, conversation.num_user_turns
            ):
                return "stop"
            answer = [
                {**message, "content": read_content(message.get("content"), "a callback's message")}
                for message in answer
            ]
            role = "tool" if all(message["role"] == "tool" for message in answer) else "user"
            sampler = conversation.sampler
            if not history.add_messages(answer, role, sampler.budget, latency=sampler.waited()):
                return "length"
            conversation.num_user_turns += 1

    def _read(self, completion: Completion, num_calls: int) -> tuple[str, ParsedTurn]:
        text, turn = self.context.read_turn(completion, num_calls)
        if self.keeps_stop and isinstance(completion.stop_reason, str):
            text = self.context.decode(completion.ids)
        return text, turn

    async def _call(self, conversation: CallbackConversation, completion: Fields) -> list[Message] | None:
        """The messages that the callback appends after the model's; None if it does not ask for another turn."""
        before, info = copy.deepcopy(conversation.messages), conversation.info

        async def act() -> dict[str, Any]:
            info[SUBMITTED].clear()
            info["__depth__"] -= 1
            await self._guarded(conversation.messages, completion, info)
            submitted = info[SUBMITTED][0] if info[SUBMITTED] else None
            if submitted is not None and submitted[: len(before)] != before:
                raise EpisodeFailed(f"{self._what} changed earlier messages; it may only append some")
            new = (conversation.messages if submitted is None else submitted)[len(before) :]
            return {"new": new, "submitted": submitted is not None, "info": _recordable(info)}

        value = await conversation.sampler.observe(act, name=self._what)
        conversation.messages = [*before, *value["new"]]
        info.update(value["info"])
        if not value["submitted"]:
            return None
        own, *answer = value["new"] or [{}]
        if own.get("role") != "assistant" or not answer:
            raise EpisodeFailed(f"{self._what} must append the model's message, then an answer, before it submits both")
        return answer

    async def _guarded(self, messages: list[Message], completion: Fields, info: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self.context.timeout):
                await call_async(self.callback, messages, completion, info)
        except TimeoutError:
            raise EpisodeFailed(f"{self._what} took longer than {self.context.timeout:g} s") from None
        except (EpisodeFailed, UserError):
            raise
        except Exception as error:  # a callback is the user's program and may raise anything
            raise failed(self._what, error) from error

    @property
    def _what(self) -> str:
        return f"completion callback {self.name!r}"


def _recordable(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a callback keeps in `info`, as far as the journal can hold it."""
    values = {}
    for name, value in info.items():
        try:
            values |= {} if name.startswith("__") else {name: json.loads(json.dumps(value))}
        except (TypeError, ValueError):  # an object of the callback's own
            continue
    return values
