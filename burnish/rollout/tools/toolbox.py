"""Toolbox: the tools of a run with their limits. ToolSession: their use in one conversation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.errors import UserError, nearest
from burnish.media import InvalidMedia
from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.tools.gate import CallGate
from burnish.rollout.tools.results import finite
from burnish.rollout.tools.schema import check_arguments
from burnish.rollout.tools.tool import ConversationInfo, Tool, ToolResult, ToolTimeout
from burnish.rollout.tools.truncation import NO_LIMIT, ResponseLimit

logger = logging.getLogger(__name__)

MAX_ERROR = 10_000  # characters of an exception's message
RETRY_SECONDS = 0.1  # before the second attempt; doubles with each further one


class Toolbox:
    """Tools by name."""

    def __init__(self, tools: Sequence[Tool], notices: Sequence[str] = ()) -> None:
        for name, count in Counter(tool.name for tool in tools).items():
            if count > 1:
                raise UserError(
                    f"{count} tools have this name; the model could not tell them apart",
                    key="tool_schema.function.name",
                    value=name,
                    hint="another name in one of their schemas",
                )
        self.tools = {tool.name: tool for tool in tools}
        self.notices = list(notices)  # for the start of the run
        self._gates = {id(tool.limits): CallGate(tool.limits) for tool in tools}

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def reads_rows(self) -> bool:
        """Whether prompts must carry whole rows of the data."""
        return any(tool.reads_rows for tool in self.tools.values())

    def schemas(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Schemas for the chat template; `names` selects some."""
        return [tool.schema for name, tool in self.tools.items() if names is None or name in names]

    def gate(self, tool: Tool) -> CallGate:
        """Tools with the same limits object share a gate."""
        return self._gates[id(tool.limits)]

    def close(self) -> None:
        """Stop the processes and connections of all tools."""
        for tool in self.tools.values():
            tool.shut_down()


@dataclass
class ToolCounts:
    """What the tools of one conversation did."""

    calls: int = 0
    failed: int = 0
    timed_out: int = 0  # of those that failed
    over_limit: int = 0  # calls beyond max_parallel_calls
    truncated: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)  # of tools that score a conversation

    def add(self, result: ToolResult) -> None:
        """Count a call, also one that an earlier process executed."""
        self.calls += 1
        self.failed += result.failed
        self.timed_out += result.timed_out
        self.truncated += result.truncated
        self.seconds += result.seconds
        for name, value in result.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value


class ToolSession:
    """The tools in one conversation. Opened on first use, or at the start where the row has options for a tool."""

    def __init__(
        self,
        toolbox: Toolbox,
        conversation: ConversationInfo,
        options: Mapping[str, Mapping[str, Any]],
        limit: ResponseLimit = NO_LIMIT,
        names: Collection[str] | None = None,
    ) -> None:
        self.tools = {name: tool for name, tool in toolbox.tools.items() if names is None or name in names}
        self.toolbox = toolbox
        self.conversation = conversation
        self.options = options
        self.limit = limit
        self.counts = ToolCounts()
        self._states: dict[str, tuple[Tool, asyncio.Task[Any]]] = {}  # by group

    async def start(self) -> None:
        """Open the tools that the row has options for, and those that open at the start."""
        opened = [tool for name, tool in self.tools.items() if tool.opens_at_start or name in self.options]
        opening = (self._within_limit(tool, self._state(tool)) for tool in opened)
        results = await asyncio.gather(*opening, return_exceptions=True)
        for tool, result in zip(opened, results, strict=True):
            if isinstance(result, UserError):
                raise result
            if isinstance(result, BaseException):  # the first call tries again and tells the model
                self._warn(tool, "cannot be opened", result)

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute a call; whatever goes wrong becomes a text for the model. `counts.add` counts the result."""
        started = time.monotonic()
        result = await self._result(call)
        text = self.limit.cut(result.text)
        seconds = time.monotonic() - started
        return replace(result, text=text, truncated=text is not result.text, seconds=seconds)

    def refuse(self, call: ToolCall, limit: int) -> ToolResult:
        """The answer to a call beyond the limit of a turn."""
        self.counts.over_limit += 1
        return failure(f"not executed: at most {limit} calls per turn are allowed. Call {call.name} again.")

    async def finish(self) -> float:
        """Score and close every tool that was opened; returns the sum of the scores."""
        try:
            for group, (tool, state) in self._states.items():
                if _succeeded(state):
                    self.counts.scores[group] = await self._score(tool, state.result())
        finally:
            await self.close()
        return sum(self.counts.scores.values())

    async def close(self) -> None:
        """Release every tool, also after a failure."""
        states, self._states = self._states, {}
        for _, state in states.values():
            if not state.done():
                state.cancel()
        opened = [(tool, state.result()) for tool, state in states.values() if _succeeded(state)]
        closing = (self._within_limit(tool, tool.close(state)) for tool, state in opened)
        results = await asyncio.gather(*closing, return_exceptions=True)
        for (tool, _), result in zip(opened, results, strict=True):
            if isinstance(result, BaseException):
                self._warn(tool, "cannot be closed", result)

    def _state(self, tool: Tool) -> asyncio.Future[Any]:
        """The tool's state, opened now unless it already is. A failed attempt is made again."""
        entry = self._states.get(tool.group)
        if entry is None or (entry[1].done() and not _succeeded(entry[1])):
            options = self.options.get(tool.name) or {}
            entry = tool, asyncio.create_task(tool.open(self.conversation, options))
            self._states[tool.group] = entry
        return asyncio.shield(entry[1])  # a call that times out must not undo what others wait for

    async def _result(self, call: ToolCall) -> ToolResult:
        if call.problem is not None:
            return failure(call.problem)
        if call.name not in self.tools:
            closest = nearest(call.name[:100], self.tools)
            suggestion = f"Did you mean {closest}?" if closest else f"Available: {', '.join(self.tools) or 'none'}."
            return failure(f"there is no tool {call.name[:100]!r}. {suggestion}")
        tool = self.tools[call.name]
        problem = check_arguments(tool.schema, call.arguments)
        if problem is not None:
            return failure(problem)
        async with self.toolbox.gate(tool):
            return await self._attempts(tool, call.arguments)

    async def _attempts(self, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        limits = tool.limits
        for attempt in range(limits.retries + 1):
            try:
                return await self._within_limit(tool, self._call(tool, arguments))
            except ToolTimeout:
                return replace(failure(f"{tool.name} did not answer within {limits.timeout:g} s"), timed_out=True)
            except InvalidMedia as error:  # a picture of this answer
                return failure(error.problem[:MAX_ERROR])
            except UserError:  # a setting that is wrong for every call
                raise
            except Exception as error:  # a tool is somebody's program and may raise anything
                if attempt == limits.retries:
                    return failure(f"{type(error).__name__}: {str(error)[:MAX_ERROR]}")
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        return await tool.call(await self._state(tool), arguments)

    async def _score(self, tool: Tool, state: Any) -> float:
        try:
            return finite(await self._within_limit(tool, tool.score(state)))
        except UserError:
            raise
        except Exception as error:
            self.counts.failed += 1
            self._warn(tool, "cannot score the conversation, which counts as 0", error)
            return 0.0

    async def _within_limit(self, tool: Tool, awaitable: Any) -> Any:
        deadline = asyncio.timeout(None if tool.enforces_timeout else tool.limits.timeout)
        try:
            async with deadline:
                return await awaitable
        except TimeoutError as error:
            if deadline.expired():  # else one of the tool's own
                raise ToolTimeout(f"{tool.limits.timeout:g} s") from error
            raise

    def _warn(self, tool: Tool, what: str, error: BaseException) -> None:
        problem = f"{type(error).__name__}: {str(error)[:MAX_ERROR]}"
        logger.warning("conversation %s: the tool %s %s: %s", self.conversation.id, tool.name, what, problem)


def failure(text: str) -> ToolResult:
    return ToolResult(f"Error: {text}", failed=True)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
