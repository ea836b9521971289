"""EarlyCalls: tool calls that start as soon as their closing tag is sampled, while the turn is still decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.tools.tool import ToolResult

Execute = Callable[[int, ToolCall], Coroutine[Any, Any, ToolResult]]  # a call and its index in the turn


class EarlyCalls:
    """The calls of one turn that are under way before it ends.

    When the turn is complete, `take` returns those that it really has; the others are canceled by `close`. So results
    depend on the complete turn alone, and not on what was started when.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], list[ToolCall]],
        may_start: Callable[[ToolCall], bool],
        execute: Execute,
        limit: int | None,
    ) -> None:
        self.read = read
        self.may_start = may_start
        self.execute = execute
        self.limit = limit  # calls of a turn that are executed
        self.is_open = True
        self._started: dict[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = {}

    def watch(self, tokens: list[int]) -> None:
        """Start what is complete in the turn so far."""
        if not self.is_open:
            return
        for index, call in enumerate(self.read(tokens)[: self.limit]):
            if index not in self._started and self.may_start(call):
                self._started[index] = call, asyncio.create_task(self.execute(index, call))

    def take(self, index: int, call: ToolCall) -> asyncio.Task[ToolResult] | None:
        """The task of this call, if it was started."""
        if index in self._started and self._started[index][0] == call:
            return self._started.pop(index)[1]
        return None

    async def close(self) -> None:
        """Cancel what the complete turn does not have."""
        self.is_open = False
        tasks = [task for _, task in self._started.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
