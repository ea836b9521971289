"""Tool classes written for verl: all generations of its protocol."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.results import verl_result
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import ConversationInfo, Tool, ToolLimits, ToolResult

logger = logging.getLogger(__name__)


@dataclass
class AgentData:
    """The conversation as tools of verl 0.8 are given it. `extra_fields` is theirs to keep state in."""

    request_id: str
    messages: list[dict[str, Any]]
    tools_kwargs: Mapping[str, Any]
    extra_fields: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    tool_rewards: list[float] = field(default_factory=list)

    @property
    def assistant_turns(self) -> int:
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def user_turns(self) -> int:
        """Replies to the model: every run of tool or user messages that follows a turn of it."""
        pairs = zip(self.messages, self.messages[1:], strict=False)
        return sum(one["role"] == "assistant" and other["role"] != "assistant" for one, other in pairs)


@dataclass
class _Instance:
    id: Any
    options: Mapping[str, Any]
    agent_data: AgentData


class VerlTool(Tool):
    """An instance of a user's BaseTool. It is created once per conversation, as verl 0.4 did.

    0.4: create(instance_id, **kwargs) returns an id, execute takes **execute_kwargs. From 0.5: create takes one
    `create_kwargs` and returns (id, ToolResponse); from 0.8: execute takes `agent_data`. Every argument goes to the
    tools whose signature has it. Step rewards and calc_reward both count.
    """

    def __init__(self, tool: Any, schema: dict[str, Any] | None = None, limits: ToolLimits | None = None) -> None:
        where = type(tool).__name__
        super().__init__(normalize_schema(_schema_of(tool), where) if schema is None else schema, limits)
        self.tool = tool
        self.code = UserCode(self.name)
        parameters = list(inspect.signature(tool.execute).parameters.values())
        # Before 0.4.1, the arguments of a call were JSON text.
        self._as_json = len(parameters) > 1 and parameters[1].annotation in (str, "str")
        self._warned = False

    async def open(self, conversation: ConversationInfo, options: Mapping[str, Any]) -> _Instance:
        kwargs = dict(options.get("create_kwargs") or {})
        names = _parameters(self.tool.create)
        if "create_kwargs" in names:
            kwargs = {"create_kwargs": kwargs}
        elif _takes_any(self.tool.create):  # reads them either way: unpacked, or from kwargs["create_kwargs"]
            kwargs = {**kwargs, "create_kwargs": kwargs}
        created = await self.code.run(self.tool.create, conversation.id, **kwargs)
        extra = conversation.row.get("extra_info") or {}
        agent_data = AgentData(conversation.id, conversation.messages, extra.get("tools_kwargs") or {})
        return _Instance(created[0] if isinstance(created, tuple) else created, options, agent_data)

    async def call(self, state: _Instance, arguments: dict[str, Any]) -> ToolResult:
        execute = self.tool.execute
        kwargs = dict(state.options.get("execute_kwargs") or {})
        if "agent_data" in _parameters(execute) or _takes_any(execute):
            kwargs["agent_data"] = state.agent_data
        parameters = json.dumps(arguments, ensure_ascii=False) if self._as_json else arguments
        result = verl_result(await self.code.run(execute, state.id, parameters, **kwargs))
        state.agent_data.tool_rewards.append(result.reward)
        return result

    async def score(self, state: _Instance) -> float:
        calc_reward = getattr(self.tool, "calc_reward", None)
        if calc_reward is None:
            return 0.0
        value = await self.code.run(calc_reward, state.id, **(state.options.get("calc_reward_kwargs") or {}))
        try:
            return float(value or 0.0)
        except (TypeError, ValueError):  # the search and sandbox tools of verl return lists of texts
            if not self._warned:
                logger.warning("calc_reward of %s returned %s, which counts as 0", self.name, type(value).__name__)
            self._warned = True
            return 0.0

    async def close(self, state: _Instance) -> None:
        release = getattr(self.tool, "release", None)
        if release is not None:
            await self.code.run(release, state.id, **(state.options.get("release_kwargs") or {}))

    def shut_down(self) -> None:
        self.code.close()


def is_verl_tool(cls: Any) -> bool:
    return callable(getattr(cls, "create", None)) and callable(getattr(cls, "execute", None))


def _schema_of(tool: Any) -> Any:
    schema = getattr(tool, "tool_schema", None)
    return tool.get_openai_tool_schema() if schema is None else schema


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(function).values())
