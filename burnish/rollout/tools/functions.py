"""Python functions as tools, and classes whose public methods are tools."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from burnish.errors import NotSupportedYet, UserError
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.isolated import LoadTemplate, Template, isolated_tools
from burnish.rollout.tools.results import finite, plain_result
from burnish.rollout.tools.schema import check_signature, normalize_schema, schema_of
from burnish.rollout.tools.tool import ConversationInfo, Tool, ToolLimits, ToolResult

LIFECYCLE = ("reset", "get_reward", "close")  # methods of an environment that are not tools


class FunctionTool(Tool):
    """A function that is called with the model's arguments. Its docstring and type hints are the schema.

    >>> burnish.train(..., tools=[FunctionTool(search, limits=ToolLimits(timeout=5))])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        schema: Mapping[str, Any] | None = None,
        limits: ToolLimits | None = None,
        result_of: Callable[[Any], ToolResult] = plain_result,
    ) -> None:
        where = getattr(function, "__name__", type(function).__name__)
        super().__init__(schema_of(function) if schema is None else normalize_schema(schema, where), limits)
        check_signature(function, self.schema, where)
        self.function = function
        self.result_of = result_of
        self.code = UserCode(self.name)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        return self.result_of(await self.code.run(self.function, **arguments))

    def shut_down(self) -> None:
        self.code.close()


class MethodTool(Tool):
    """A public method of a class in the manner of TRL's environment_factory: every conversation has an instance.

    Optional: `reset(**row)` when the conversation starts, `get_reward()` and `close()` when it ends.
    """

    opens_at_start = True  # get_reward counts also where the model calls nothing
    reads_rows = True

    def __init__(
        self, factory: Callable[[], Any], method: str, schema: dict[str, Any], group: str, code: UserCode
    ) -> None:
        super().__init__(schema)
        self.factory = factory
        self.method = method
        self.code = code
        self._group = group

    @property
    def group(self) -> str:
        return self._group

    async def open(self, conversation: ConversationInfo, options: Mapping[str, Any]) -> Any:
        return await self.code.run(self._start, row_arguments(conversation.row))

    def _start(self, row: dict[str, Any]) -> Any:
        instance = self.factory()
        reset = getattr(instance, "reset", None)
        if reset is None:
            return instance
        parameters = inspect.signature(reset).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        started = reset(**{name: value for name, value in row.items() if takes_any or name in parameters})
        return _after(started, instance) if inspect.isawaitable(started) else _without_text(started, instance)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        return plain_result(await self.code.run(getattr(state, self.method), **arguments))

    async def score(self, state: Any) -> float:
        get_reward = getattr(state, "get_reward", None)
        return 0.0 if get_reward is None else finite(await self.code.run(get_reward))

    async def close(self, state: Any) -> None:
        close = getattr(state, "close", None)
        if close is not None:
            await self.code.run(close)

    def shut_down(self) -> None:
        self.code.close()


def method_tools(cls: type, factory: Callable[[], Any] | None = None) -> list[Tool]:
    """One tool per public method of the class. `factory` makes an instance, by default the class without arguments."""
    names = [name for name in dir(cls) if not name.startswith("_") and name not in LIFECYCLE]
    methods = {name: getattr(cls, name) for name in names if callable(getattr(cls, name))}
    if not methods:
        raise UserError(
            "the class has no public method, and those are its tools",
            key="tools",
            value=cls.__name__,
            allowed="a class with methods that have type hints and docstrings, or functions",
        )
    code = UserCode(cls.__name__)  # of all methods: they may share locks and sessions
    schemas = {name: schema_of(_bound(cls, name), name) for name in methods}
    return [MethodTool(factory or cls, name, schema, cls.__name__, code) for name, schema in schemas.items()]


def python_tools(entries: Sequence[Any], load_template: LoadTemplate = Template) -> list[Tool]:
    """`burnish.train(tools=[...])`: functions, classes whose methods are tools, or tools."""
    tools: list[Tool] = []
    for entry in entries:
        if isinstance(entry, FunctionTool) and entry.limits.isolate:
            build = partial(_function_tool, entry.function, entry.schema, entry.result_of)
            tools += isolated_tools(build, entry.limits, load=load_template)
        elif isinstance(entry, Tool):
            tools.append(entry)
        elif isinstance(entry, type):
            tools += method_tools(entry)
        elif callable(entry):
            tools.append(FunctionTool(entry))
        else:
            raise UserError("not a tool", key="tools", value=entry, allowed="functions, classes, or Tool objects")
    return tools


def _function_tool(function: Callable[..., Any], schema: dict[str, Any], result_of: Callable[..., Any]) -> list[Tool]:
    """In another process, so without limits."""
    return [FunctionTool(function, schema, result_of=result_of)]


def row_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the data as keyword arguments: its columns, as far as the batch carries them."""
    prompt, columns = row.get("dataset_row") or (row.get("raw_prompt"), {})
    names = ("data_source", "ground_truth", "extra_info")
    return {"prompt": prompt, **{name: row[name] for name in names if name in row}, **columns}


def _bound(cls: type, name: str) -> Callable[..., Any]:
    """The method without `self`, for its signature."""
    method = inspect.getattr_static(cls, name)
    return types.MethodType(method, cls) if inspect.isfunction(method) else getattr(cls, name)


async def _after(reset: Any, instance: Any) -> Any:
    return _without_text(await reset, instance)


def _without_text(text: Any, instance: Any) -> Any:
    if isinstance(text, str) and text:
        raise NotSupportedYet(
            f"{type(instance).__name__}.reset returned text to add to the prompt: not supported yet",
            key="tools",
            hint="put the text into the prompt of the row",
        )
    return instance
