"""Stand-ins for what a model talks to: tools that answer by their schema, a parser that calls them, an environment.

A stand-in model is untrained and never writes a tool call. `ScriptedCalls` therefore reads one from most turns, with
arguments that fit the schema of the called tool.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from burnish.config.root import TrainConfig
from burnish.loop.build_agents import MULTI_TURN
from burnish.rehearsal.rows import exists
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall
from burnish.rollout.environments.environment import StepResult
from burnish.rollout.tools.builtin.mcp import read_servers
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.load import TOOLS, build_tools, load_function_tools, read_tool_config
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import Tool, ToolResult
from burnish.user_code import is_importable, is_user_path

PARSER = "pkg://burnish.rehearsal.stand_in_tools:ScriptedCalls"
ENVIRONMENT = "burnish.rehearsal.stand_in_tools:StandInEnvironment"
END_EVERY = 4  # one in so many tokens ends a turn: an untrained model would seldom sample EOS
NUM_STEPS = 2  # of the stand-in environment
MAX_DEPTH = 4  # of arguments


class StandInTool(Tool):
    """Has a tool's schema and answers every call with what it was called with."""

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(json.dumps({"tool": self.name, "arguments": arguments}, ensure_ascii=False, default=str))


class ScriptedCalls:
    """A parser that takes a turn, whatever its text, for a call of one of the tools, and every fourth for an answer."""

    stop_tokens: Sequence[str] = ()

    def __init__(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        self.schemas = schemas

    def parse(self, text: str) -> ParsedTurn:
        number = zlib.crc32(text.encode("utf-8", "replace"))
        if not self.schemas or number % 4 == 0:
            return ParsedTurn(text)
        function = self.schemas[number // 4 % len(self.schemas)]["function"]
        return ParsedTurn(text, [ToolCall(function["name"], arguments_for(function["parameters"]))])


def arguments_for(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a JSON schema of an object: all that it describes."""
    return {name: value_for(described) for name, described in parameters.get("properties", {}).items()}


def value_for(schema: Any, depth: int = 0) -> Any:
    """A value that fits a JSON schema, as far as tools use it."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return "text"
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return value_for(schema[name][0], depth + 1)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "array":
        return [value_for(schema.get("items"), depth + 1)] * max(1, min(schema.get("minItems", 1), 8))
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: value_for(described, depth + 1) for name, described in properties.items()}
    values: dict[Any, Any] = {
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1.0),
        "boolean": True,
        "null": None,
    }
    return values.get(kind, "text")


class StandInEnvironment:
    """Answers every action; done after a few. The reward depends on the action only."""

    def __init__(self, **kwargs: Any) -> None:
        self.num_steps = 0

    def reset(self, seed: int) -> str:
        return f"This stands in for the environment; its seed is {seed}."

    def step(self, action: str) -> StepResult:
        self.num_steps += 1
        reward = zlib.crc32(action.encode("utf-8", "replace")) % 1000 / 1000
        return StepResult("Go on.", reward, done=self.num_steps >= NUM_STEPS)


def replace_conversation_parts(cfg: TrainConfig, vocab_size: int) -> list[Tool]:
    """The run's tools as stand-ins; the config then names none, and its turns end early."""
    rollout = cfg.actor_rollout_ref.rollout
    turns = rollout.multi_turn
    tools = stand_in_tools(turns.tool_config_path, turns.function_tool_path)
    if cfg.data.tool_config_path == turns.tool_config_path:
        cfg.data.tool_config_path = None
    turns.tool_config_path = turns.function_tool_path = None
    if tools:
        turns.format = PARSER
        # The text of a turn is not the call that was read from it.
        turns.tokenization_sanity_check_mode = "disable"
    rollout.stop_token_ids = sorted({*rollout.stop_token_ids, *range(0, vocab_size, END_EVERY)})
    return tools


def stand_in_tools(config_path: str | None, function_path: str | None) -> list[Tool]:
    """A stand-in for every tool of the two files. Their classes are created, which finds mistakes; none is called."""
    schemas = []
    for entry in read_tool_config(config_path, f"{MULTI_TURN}.tool_config_path") if config_path else ():
        schemas += schemas_of(entry)
    if function_path:
        schemas += [tool.schema for tool in load_function_tools(function_path, f"{MULTI_TURN}.function_tool_path")]
    return [StandInTool(schema) for schema in schemas]


def schemas_of(entry: ToolEntry) -> list[dict[str, Any]]:
    """The schemas of an entry's tools. MCP servers are not started, and classes of other machines not looked for."""
    if is_mcp(entry):
        read_servers(entry)
        names = entry.mcp.get("tool_selected_list") or ["mcp_tool"]
        return [made_up_schema(str(name)) for name in names]
    if not is_local(entry):
        return [entry.schema or made_up_schema(entry.class_name.rpartition(".")[2])]
    limits = {name: value for name, value in entry.limits.items() if name != "isolate"}
    tools = build_tools(replace(entry, limits=limits))
    for tool in tools:
        tool.shut_down()
    return [tool.schema for tool in tools]


def is_mcp(entry: ToolEntry) -> bool:
    return bool(entry.mcp) or entry.config.get("type") == "mcp"


def is_local(entry: ToolEntry) -> bool:
    """Whether the entry's class can be looked for on this machine."""
    name = entry.class_name
    if name in TOOLS or ("." not in name and ":" not in name):  # a name without a module is a mistake to report
        return True
    return exists(name.rpartition(":")[0]) if is_user_path(name) else is_importable(name.rpartition(".")[0])


def made_up_schema(name: str) -> dict[str, Any]:
    """Of a tool whose schema is not known here."""
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    function = {"name": name, "description": "Stands in for a tool.", "parameters": parameters}
    return normalize_schema({"type": "function", "function": function}, name)
