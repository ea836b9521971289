"""ToolAgent: the model calls tools and talks with a simulated user, until neither has anything more to say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.early_calls import EarlyCalls
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.agents.interactions import InteractionSession
from burnish.rollout.agents.limits import reached
from burnish.rollout.chat.forms import Message
from burnish.rollout.chat.history import AppendHistory
from burnish.rollout.chat.pictures import content_of
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall
from burnish.rollout.conversation import Observer
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.episode import INTERRUPTED, Prompt, Sampler
from burnish.rollout.stop import visible_text
from burnish.rollout.tools.tool import ConversationInfo, ToolResult
from burnish.rollout.tools.toolbox import ToolSession
from burnish.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)

SampledTurn = tuple[Completion, ParsedTurn]


@dataclass
class Conversation:
    """The state of one conversation."""

    history: AppendHistory
    sampling: dict[str, Any]  # of a turn, where it differs from the prompt's
    messages: list[Message]  # what a simulated user reads
    tools: ToolSession
    user: InteractionSession | None = None
    num_calls: int = 0
    num_user_turns: int = 0  # tool results and replies
    num_replies: int = 0  # of the simulated user alone
    early: EarlyCalls | None = None  # of the newest turn

    async def start(self) -> None:
        await self.tools.start()
        if self.user is not None:
            await self.user.start()

    async def finish(self) -> None:
        """What tools and the user say about the whole conversation rewards its last turn."""
        reward = await self.tools.finish()
        if self.user is not None:
            reward += await self.user.finish()
        self.history.add_reward(reward)

    async def close_early(self) -> None:
        early, self.early = self.early, None
        if early is not None:
            await early.close()

    def extras(self) -> dict[str, Any]:
        """For reward functions, under the names that verl gives them."""
        scores: dict[str, Any] = dict(self.tools.counts.scores)
        if self.user is not None:
            scores["user_turn_rewards"] = list(self.user.turn_scores)
        num_turns = sum(len(row.turns) for row in self.history.rows) + 1
        return {"num_turns": num_turns} | ({"rollout_reward_scores": scores} if scores else {})

    def info(self) -> dict[str, Any]:
        user = {} if self.user is None else {"interaction": {"replies": self.num_replies, **self.user.metrics}}
        return {"tools": asdict(self.tools.counts), **user}


class ToolAgent:
    """An episode with tools, a simulated user, or both."""

    uses_session = True
    scores = False

    def __init__(self, context: AgentContext) -> None:
        self.context = context
        self.toolbox = context.toolbox
        self.interactions = context.interactions
        self.limits = context.limits
        self.response_limit = context.response_limit
        self._warned = False

    async def run(self, prompt: Prompt, sampler: Sampler) -> list[Trajectory]:
        return await self.finish(self.open(prompt), sampler)

    async def finish(
        self, conversation: Conversation, sampler: Sampler, sampled: SampledTurn | None = None
    ) -> list[Trajectory]:
        """The conversation to its end. `sampled`: its newest turn, which nobody has answered yet."""
        problem: str | None = None
        finish_reason: FinishReason = "stop"
        async with AsyncExitStack() as stack:
            stack.push_async_callback(conversation.tools.close)
            stack.push_async_callback(conversation.close_early)
            if conversation.user is not None:
                stack.push_async_callback(conversation.user.close)
            try:
                await conversation.start()
                finish_reason = await self.converse(conversation, sampler, sampled)
                await conversation.finish()
            except EpisodeFailed as failure:
                problem = str(failure)
        info = {**conversation.info(), **self.context.drift_of(conversation.history)}
        return conversation.history.trajectories(finish_reason, info, extras=conversation.extras(), problem=problem)

    def open(self, prompt: Prompt) -> Conversation:
        messages = first_messages(prompt, self.context.decode)
        info = ConversationInfo(f"{prompt.uid}-{prompt.sample}-{prompt.seed:x}", prompt.seed, prompt.row, messages)
        options, names = tool_options(prompt.row), selected_tools(prompt.row)
        self._check_options(prompt, options)
        tools = ToolSession(self.toolbox, info, options, self.response_limit, names)
        user = None if self.interactions is None else self.interactions.session(info)
        history = self.context.history(self.context.template, prompt.input, prompt.row.get("raw_prompt"))
        return Conversation(history, self.context.sampling_of(prompt), messages, tools, user)

    def _check_options(self, prompt: Prompt, options: Mapping[str, Any]) -> None:
        """Warn once of rows that say that they need options and have none, or options of tools that do not exist."""
        needs = (prompt.row.get("extra_info") or {}).get("need_tools_kwargs") and not options
        unknown = [name for name in options if name not in self.toolbox.tools]
        if not self._warned and (needs or unknown):
            self._warned = True
            problem = f"has options for unknown tools: {', '.join(unknown)}" if unknown else "is empty, but needed"
            logger.warning("extra_info.tools_kwargs of row %s %s", prompt.uid, problem)

    async def converse(
        self, conversation: Conversation, sampler: Sampler, sampled: SampledTurn | None = None
    ) -> FinishReason:
        """Sample and observe in turn; returns why the conversation ended."""
        while True:
            completion, turn = sampled or await self.sample(conversation, sampler)
            sampled = None
            finish_reason = await self.observe(conversation, sampler, completion, turn)
            if finish_reason is not None:
                return finish_reason

    async def sample(self, conversation: Conversation, sampler: Sampler, *, early: bool = True) -> SampledTurn:
        """The model's next turn. `early`: its calls may start before it is complete."""
        history = conversation.history
        watch = self._start_early(conversation, sampler) if early else {}
        completion = await sampler.generate(history.input, **watch, **conversation.sampling)
        sampler.waited()  # for calls that ran while the turn was sampled: nobody waited
        text, turn = self.context.read_turn(completion, conversation.num_calls)
        history.add_turn(completion, text, turn)
        conversation.num_calls += len(turn.calls)
        calls = [call.message() for call in turn.calls]
        visible = visible_text(completion.ids, completion.stop_reason, self.context.decode_visible)
        message: Message = {"role": "assistant", "content": turn.content if calls else visible}
        conversation.messages.append({**message, "tool_calls": calls} if calls else message)
        return completion, turn

    async def observe(
        self, conversation: Conversation, sampler: Sampler, completion: Completion, turn: ParsedTurn
    ) -> FinishReason | None:
        """Append what tools or the user answer to a turn; why the conversation ends if it does."""
        if not turn.calls:
            await conversation.close_early()
        if completion.finish_reason != "stop":
            return completion.finish_reason
        if not turn.calls:
            return await self._ask_user(conversation, sampler)
        if self._is_last_turn(conversation):
            return "stop"
        results = await self._execute(turn.calls, conversation, sampler)
        conversation.history.add_reward(sum(result.reward for result in results))
        sees = self.context.template.vision is not None
        messages = [_message(call, result, sees) for call, result in zip(turn.calls, results, strict=True)]
        return self._append(conversation, sampler, messages, "tool")

    async def _ask_user(self, conversation: Conversation, sampler: Sampler) -> FinishReason | None:
        """The user scores every complete turn without calls; its reply is appended if another turn may follow."""
        user = conversation.user
        if user is None:
            return "stop"
        reply = await user.reply(conversation.messages, sampler)
        conversation.history.add_reward(reply.score)
        conversation.num_replies += 1
        limit = self.limits.max_interaction_turns
        if reply.done or self._is_last_turn(conversation) or reached(limit, conversation.num_replies - 1):
            return "stop"
        return self._append(conversation, sampler, [{"role": "user", "content": reply.text}], "user")

    def _is_last_turn(self, conversation: Conversation) -> bool:
        return reached(self.limits.max_assistant_turns, conversation.history.num_sampled_turns) or reached(
            self.limits.max_user_turns, conversation.num_user_turns
        )

    def _append(
        self,
        conversation: Conversation,
        sampler: Sampler,
        messages: Sequence[Message],
        role: Observer,
    ) -> FinishReason | None:
        if not conversation.history.add_messages(messages, role, sampler.budget, latency=sampler.waited()):
            return "length"  # the model could not answer
        conversation.messages += messages
        conversation.num_user_turns += 1
        return None

    def _start_early(self, conversation: Conversation, sampler: Sampler) -> dict[str, Any]:
        """Let calls of the coming turn start when they are complete; keywords of `Sampler.generate` for that."""
        turns, replies = conversation.history.num_sampled_turns + 1, conversation.num_user_turns
        is_last = reached(self.limits.max_assistant_turns, turns) or reached(self.limits.max_user_turns, replies)
        if not sampler.watches or is_last or not self.context.closing_ids:
            return {}
        num_calls, tools = conversation.num_calls, self.toolbox.tools
        conversation.early = EarlyCalls(
            lambda tokens: self.context.read_partial(tokens, num_calls),
            lambda call: call.name in tools and tools[call.name].starts_early,
            lambda index, call: self._call(call, num_calls + index, conversation.tools, sampler),
            self.limits.max_parallel_calls,
        )
        return {"watch": (self.context.closing_ids, conversation.early.watch)}

    async def _execute(
        self, calls: Sequence[ToolCall], conversation: Conversation, sampler: Sampler
    ) -> list[ToolResult]:
        """Results in the order of the calls; those beyond the limit are answered with an error."""
        limit = len(calls) if self.limits.max_parallel_calls is None else self.limits.max_parallel_calls
        tools, early, first = conversation.tools, conversation.early, conversation.num_calls - len(calls)
        running = [
            (early and early.take(index, call)) or self._call(call, first + index, tools, sampler)
            for index, call in enumerate(calls[:limit])
        ]
        results = await asyncio.gather(*running)
        await conversation.close_early()
        for result in results:
            tools.counts.add(result)
        return [*results, *(tools.refuse(call, limit) for call in calls[limit:])]

    async def _call(self, call: ToolCall, number: int, tools: ToolSession, sampler: Sampler) -> ToolResult:
        """A call through the journal: one that was answered before the run was killed is not executed again.

        It is identified by its number and content: a turn that was not journaled may be sampled otherwise.
        """
        tool = self.toolbox.tools.get(call.name)

        async def act() -> dict[str, Any]:
            return dict(vars(await tools.call(call)))

        name = "" if tool is None else tool.name
        key, repeatable = f"call{number}.{digest(call)}", tool is None or tool.limits.repeatable
        value = await sampler.observe(act, name=name, repeatable=repeatable, key=key)
        if value is INTERRUPTED:
            return interrupted(call)
        return ToolResult(**{**value, **{name: tuple(value.get(name, ())) for name in ("images", "videos")}})


def digest(call: ToolCall) -> str:
    content = json.dumps([call.name, call.arguments, call.problem], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def interrupted(call: ToolCall) -> ToolResult:
    """The answer to a call that must not be repeated, and whose result was lost when the run was killed."""
    return ToolResult(f"Error: {call.name} was interrupted; whether it took effect is unknown.", failed=True)


def first_messages(prompt: Prompt, decode: Any) -> list[Message]:
    """The messages that a conversation starts with; a prompt that is tokens only is one message of its text."""
    messages = prompt.row.get("raw_prompt")
    if messages is None:
        return [{"role": "user", "content": decode(prompt.input.ids)}]
    return [dict(message) for message in messages]


def tool_options(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """extra_info.tools_kwargs: options of this row by tool. Files fill in null where only other rows have a tool."""
    extra = row.get("extra_info") or {}
    return {name: value for name, value in (extra.get("tools_kwargs") or {}).items() if value is not None}


def selected_tools(row: Mapping[str, Any]) -> list[str] | None:
    """extra_info.tool_selection: the tools of this row; None for all."""
    return (row.get("extra_info") or {}).get("tool_selection")


def _message(call: ToolCall, result: ToolResult, sees: bool) -> Message:
    function = call.message()["function"]
    shown = () if result.pictures_optional and not sees else (result.images, result.videos)
    content = content_of(result.text, *shown) if shown else result.text
    return {"role": "tool", "name": function["name"], "content": content, "tool_call_id": call.id}
