"""verl.tools and verl.interactions: base classes, schemas and decorators of users' tools."""

from __future__ import annotations

import dataclasses
import json
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


class Schema:
    """The part of pydantic's interface that users need: conversion from and to dicts, with nested schemas."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # subclasses are dataclasses

    @classmethod
    def model_validate(cls, values: Any) -> Any:
        """Build from a dict; raises ValueError for missing fields and ignores unknown ones."""
        if isinstance(values, cls):
            return values
        fields = {item.name: item for item in dataclasses.fields(cls)}
        required = {item.name for item in fields.values() if _is_required(item)}
        missing = required - values.keys()
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(sorted(missing))}")
        hints = typing.get_type_hints(cls)
        return cls(**{name: _convert(hints[name], value) for name, value in values.items() if name in fields})

    def model_dump(self, exclude_none: bool = False, **unused: Any) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return _without_none(values) if exclude_none or unused.get("exclude_unset") else values

    def model_dump_json(self, **options: Any) -> str:
        return json.dumps(self.model_dump(**options))


def _is_required(item: dataclasses.Field) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any) -> Any:
    """Convert a dict to a schema if the type hint says so, also inside a dict of schemas."""
    if isinstance(hint, type) and issubclass(hint, Schema) and isinstance(value, Mapping):
        return hint.model_validate(value)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: _convert(inner[1], item) for name, item in value.items()}
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return value


@dataclass
class OpenAIFunctionPropertySchema(Schema):
    """One parameter of a function."""

    type: Any
    description: str | None = None
    enum: list[str] | None = None
    items: Any = None


@dataclass
class OpenAIFunctionParametersSchema(Schema):
    """All parameters of a function."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)


@dataclass
class OpenAIFunctionSchema(Schema):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


@dataclass
class OpenAIFunctionToolSchema(Schema):
    """A tool in the format of chat templates."""

    type: str
    function: OpenAIFunctionSchema


@dataclass
class OpenAIFunctionCallSchema(Schema):
    """A function call by the model."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolResponse(Schema):
    """Output of a tool: text, images or videos."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video


class BaseTool:
    """A tool: created once per trajectory, executed at every call, then asked for a reward and released."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | dict[str, Any] | None) -> None:
        self.config = config
        schema = tool_schema if tool_schema is not None else self.get_openai_tool_schema()
        self.tool_schema = OpenAIFunctionToolSchema.model_validate(schema)
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        return None


class MCPBaseTool(BaseTool):
    """Base class of tools of MCP servers. Burnish calls the servers; a subclass may read the results itself."""

    def _parse_tool_result(self, content: list[Any]) -> tuple[str, dict[str, Any]]:
        """(text, metadata) of a result's parts."""
        return " ".join(part.text for part in content if part.type == "text"), {}


@dataclass(frozen=True)
class FunctionTool:
    """A function under @function_tool."""

    name: str
    fn: Callable[..., Any]
    tool_schema: dict[str, Any] | OpenAIFunctionToolSchema


FUNCTION_TOOLS: list[FunctionTool] = []  # of all files
FUNCTION_TOOL_REGISTRY: dict[str, FunctionTool] = {}  # the last one of each name


def function_tool(
    name: str | Callable[..., Any] | None = None, *, schema: dict[str, Any] | OpenAIFunctionToolSchema | None = None
) -> Any:
    """@function_tool, @function_tool("name") or @function_tool(schema=...): the function is a tool.

    Without a schema, type hints and a Google-style docstring give one.
    """
    if callable(name):
        return _register(name, None, schema)
    return lambda function: _register(function, name, schema)


def _register(function: Callable[..., Any], name: str | None, schema: Any) -> Callable[..., Any]:
    from transformers.utils import get_json_schema

    name = name or function.__name__
    for entry in FUNCTION_TOOLS:
        if entry.name == name and entry.fn.__module__ == function.__module__ and entry.fn is not function:
            raise ValueError(f"the function tool {name!r} is already registered to {entry.fn.__qualname__}")
    if schema is None:
        schema = get_json_schema(function)
        schema["function"]["name"] = name
    entry = FunctionTool(name, function, schema)
    FUNCTION_TOOLS.append(entry)
    FUNCTION_TOOL_REGISTRY[name] = entry
    return function


def get_function_tool(name: str) -> FunctionTool:
    return FUNCTION_TOOL_REGISTRY[name]


class BaseInteraction:
    """An environment that replies to the model: a simulated user, a judge, a game."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return instance_id or str(uuid.uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """(whether the conversation is over, reply, score of this turn, extra info)."""
        raise NotImplementedError(f"{type(self).__name__}.generate_response")

    async def calculate_score(self, instance_id: str | None = None, **kwargs: Any) -> float:
        return 0.0

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        return None


class Gsm8kInteraction(BaseInteraction):
    """Tells the model whether its answer is right until it is."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._instance_dict: dict[str, dict[str, Any]] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any
    ) -> str:
        instance_id = instance_id or str(uuid.uuid4())
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth, "reward": 0.0}
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        answers = [message["content"] for message in messages if message.get("role") == "assistant"]
        self._instance_dict[instance_id]["response"] = answers[-1] if answers else ""
        if await self.calculate_score(instance_id) == 1.0:
            return True, "Your response is correct!", 1.0, {}
        return False, "Your response is incorrect! Reflect on your answer and try again.", 0.0, {}

    async def calculate_score(self, instance_id: str | None = None, **kwargs: Any) -> float:
        from burnish.compat.shims.scores import gsm8k

        instance = self._instance_dict[str(instance_id)]
        return float(gsm8k(f"#### {instance['response']}", instance["ground_truth"], method="flexible"))

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        self._instance_dict.pop(str(instance_id), None)


def rollout_trace_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Does nothing: Burnish does not trace tools."""
    return function
