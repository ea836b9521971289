"""verl.tools and verl.interactions: the bases and the schemas that users' tools are written against."""

from __future__ import annotations

import dataclasses
import json
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Schema:
    """What users ask of a schema: made from a dict, with nested schemas, and turned into one again."""

    @classmethod
    def model_validate(cls, values: Any) -> Any:
        """From a dict; ValueError for what is missing or unknown."""
        if isinstance(values, cls):
            return values
        known = {one.name: one for one in dataclasses.fields(cls)}
        needed = {one.name for one in known.values() if _is_needed(one)}
        missing = needed - values.keys()
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(sorted(missing))}")
        hints = typing.get_type_hints(cls)
        return cls(**{name: _made(hints[name], value) for name, value in values.items() if name in known})

    def model_dump(self, exclude_none: bool = False, **unused: Any) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return _without_none(values) if exclude_none or unused.get("exclude_unset") else values

    def model_dump_json(self, **options: Any) -> str:
        return json.dumps(self.model_dump(**options))


def _is_needed(one: dataclasses.Field) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def _made(hint: Any, value: Any) -> Any:
    """A dict where a schema is asked for becomes one, also inside a dict of them."""
    if isinstance(hint, type) and issubclass(hint, Schema) and isinstance(value, Mapping):
        return hint.model_validate(value)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: _made(inner[1], one) for name, one in value.items()}
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
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
    """A tool, as chat templates are told of it."""

    type: str
    function: OpenAIFunctionSchema


@dataclass
class OpenAIFunctionCallSchema(Schema):
    """A call that a model made."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolResponse(Schema):
    """What a tool says: text, and pictures or videos."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video


class BaseTool:
    """A tool: created for a trajectory, executed at every call, asked for a reward, released."""

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


class BaseInteraction:
    """Somebody who answers the model: a user, a judge, a game."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return instance_id or str(uuid.uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Is it over, what is said, the score of this turn, more about it."""
        raise NotImplementedError(f"{type(self).__name__}.generate_response")

    async def calculate_score(self, instance_id: str | None = None, **kwargs: Any) -> float:
        return 0.0

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        return None


def rollout_trace_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing is traced: the function as it is."""
    return function
