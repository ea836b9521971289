"""Load tools: verl's YAML files, and files of functions."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from burnish.errors import NotSupportedYet, UserError, nearest
from burnish.registry import Registry
from burnish.rollout.tools.entry import EXAMPLE, ToolEntry, read_entry
from burnish.rollout.tools.functions import FunctionTool, method_tools
from burnish.rollout.tools.isolated import LoadTemplate, Template, isolated_tools
from burnish.rollout.tools.results import verl_result
from burnish.rollout.tools.tool import Tool
from burnish.rollout.tools.verl_tool import VerlTool, is_verl_tool
from burnish.untrusted import BoundedLoader
from burnish.user_code import load_user_attribute, load_user_module

# An entry is a function of a ToolEntry that returns a list of tools. verl's own classes have entries of the same kind.
TOOLS = Registry("tool", key="class_name")
_BUILTIN = "burnish.rollout.tools.builtin"
for _name, _path in {
    "calculator": "calculator:build",
    "python": "python:build",
    "sandbox_fusion": "sandbox_fusion:build",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "sandbox_fusion:build",
    "search": "search:build",
    "verl.tools.search_tool.SearchTool": "search:build",
    "bm25": "bm25:build",
    "mcp": "mcp:build",
    "verl.tools.mcp_base_tool.MCPBaseTool": "mcp:build",
    "verl.tools.mcp_search_tool.MCPSearchTool": "mcp:build",
}.items():
    TOOLS.register_lazy(_name, f"{_BUILTIN}.{_path}")
TOOLS.register_lazy(
    "verl.tools.image_zoom_in_tool.ImageZoomInTool", "burnish.rollout.tools.load:refuse_images", needs={"vision"}
)


def load_tool_config(
    path: str, key: str, *, allow_weak: bool = False, load_template: LoadTemplate = Template
) -> tuple[list[Tool], list[str]]:
    """The tools of a YAML file as verl has it, a list of {class_name, config, tool_schema}, and notices."""
    tools: list[Tool] = []
    notices: list[str] = []
    for entry in read_tool_config(path, key, allow_weak):
        tools += build_tools(replace(entry, load_template=load_template))
        notices += entry.notices
    return tools, notices


def load_tool_schemas(path: str, key: str) -> list[dict[str, Any]]:
    """The schemas of a YAML file's tools. Only entries without a schema are built for it."""
    schemas = []
    for entry in read_tool_config(path, key):
        tools = [] if entry.schema is not None else build_tools(entry)
        schemas += [tool.schema for tool in tools] if entry.schema is None else [entry.schema]
        for tool in tools:
            tool.shut_down()
    return schemas


def read_tool_config(path: str, key: str, allow_weak: bool = False) -> list[ToolEntry]:
    """The entries of the file. Values may refer to others and to the environment, as in verl: ${oc.env:URL}."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError("no such file", key=key, value=path, hint=f"{key}=/path/to/tools.yaml")
    try:
        parsed = yaml.load(file.read_text("utf-8"), Loader=BoundedLoader)
        content = OmegaConf.to_container(OmegaConf.create(parsed), resolve=True)
    except yaml.constructor.ConstructorError as error:
        raise UserError(f"YAML tags are not allowed: {_on_one_line(error)}", key=key, value=path) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"not valid YAML: {_on_one_line(error)}", key=key, value=path) from error
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"a value cannot be resolved: {_on_one_line(error)}", key=key, value=path) from error
    entries = content.get("tools") if isinstance(content, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UserError("the file has no list of tools", key=key, value=path, allowed=f"tools: [{EXAMPLE}]")
    folder = str(file.parent)
    return [
        read_entry(entry, f"{path}: tool {number}", key, folder, allow_weak) for number, entry in enumerate(entries, 1)
    ]


def build_tools(entry: ToolEntry) -> Sequence[Tool]:
    """The tools of an entry: one, or as many as a class has methods or an MCP server offers."""
    if entry.class_name in TOOLS:
        if entry.limits.get("isolate"):
            entry.notices.append(f"{entry.where}: limits.isolate has no effect on built-in tools, which are bounded")
        return TOOLS[entry.class_name].load()(entry)
    kind = entry.config.get("type", "mcp" if entry.mcp else "native")
    if kind not in TOOL_TYPES:
        raise entry.error("no such type of tool", "config.type", kind, allowed=TOOL_TYPES.names())
    return TOOL_TYPES[kind].load()(entry)


TOOL_TYPES = Registry("type of tool", key="config.type")


@TOOL_TYPES.register("native")
def build_native(entry: ToolEntry) -> Sequence[Tool]:
    """A user's class, in this process or in its own."""
    limits = entry.with_own_timeout()
    if limits.isolate:
        others = {name: value for name, value in entry.limits.items() if name != "isolate"}
        build = functools.partial(build_native, replace(entry, limits=others, load_template=Template))
        return isolated_tools(build, limits, entry.where, entry.key, entry.load_template)
    cls = load_class(entry)
    if not is_verl_tool(cls):
        options = {name: value for name, value in entry.config.items() if name != "type"}
        return _limited(method_tools(cls, functools.partial(cls, **options)), limits)
    try:
        tool = cls(config=entry.config, tool_schema=_as_verl_schema(entry.schema))
    except UserError:
        raise
    except Exception as error:  # the user's constructor may raise anything
        if entry.schema is None:
            problem = f"{entry.class_name} cannot be created without a schema: {type(error).__name__}: {error}"
            raise entry.error(problem, "tool_schema", allowed=EXAMPLE) from error
        problem = f"{entry.class_name} cannot be created: {type(error).__name__}: {error}"
        raise entry.error(problem, "config", entry.config) from error
    return [VerlTool(tool, entry.schema, limits)]


@TOOL_TYPES.register("mcp")
def build_mcp(entry: ToolEntry) -> Sequence[Tool]:
    """Tools of MCP servers whose results a user's subclass of MCPBaseTool reads."""
    return TOOLS["mcp"].load()(entry, load_class(entry))


def refuse_images(entry: ToolEntry) -> Sequence[Tool]:
    raise NotSupportedYet(f"{entry.where}: not supported yet (vision models)", key="class_name", value=entry.class_name)


def load_class(entry: ToolEntry) -> Any:
    """A class by dotted name, or `path/to/file.py:Class`."""
    name = entry.class_name
    path, separator, attribute = name.rpartition(":" if ".py:" in name else ".")
    if not separator:
        closest = nearest(name, TOOLS.names())
        raise entry.error(
            "no such tool",
            "class_name",
            name,
            allowed=[*TOOLS.names(), "package.module.Class", "path/to/file.py:Class"],
            hint=f"class_name: {closest}" if closest else None,
        )
    try:
        return load_user_attribute(path if ".py:" in name else f"pkg://{path}", attribute, key="class_name", value=name)
    except UserError as error:
        closest = nearest(name, TOOLS.names())
        raise entry.error(
            error.problem,
            "class_name",
            name,
            allowed=error.allowed,
            hint=f"class_name: {closest}" if closest else error.hint,
        ) from error


def load_function_tools(path: str, key: str) -> list[Tool]:
    """The functions of a file that are decorated with verl's @function_tool."""
    module = load_user_module(path, key=key)
    members = [value for value in vars(module).values() if callable(value)]
    entries = [
        entry for entry in _decorated() if entry.fn.__module__ == module.__name__ or any(entry.fn is m for m in members)
    ]
    if not entries:
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UserError(
            f"the file has no function decorated with @function_tool (found {', '.join(functions) or 'none'})",
            key=key,
            value=path,
            hint="from verl.tools.function_tool import function_tool",
        )
    return [FunctionTool(entry.fn, entry.tool_schema, result_of=verl_result) for entry in entries]


def _decorated() -> list[Any]:
    """What @function_tool has registered, of all files."""
    try:
        decorator = importlib.import_module("verl.tools.function_tool")
    except ImportError:  # an installed verl before 0.9: no file can have used it
        return []
    # The stand-in remembers every function, an installed verl the last one of each name.
    return list(getattr(decorator, "FUNCTION_TOOLS", None) or decorator.FUNCTION_TOOL_REGISTRY.values())


def _limited(tools: list[Tool], limits: Any) -> list[Tool]:
    for tool in tools:
        tool.limits = limits
    return tools


def _as_verl_schema(schema: dict[str, Any] | None) -> Any:
    """verl gives tools its own schema object, which users read by attribute: of an installed verl, or our stand-in."""
    if schema is None:
        return None
    return importlib.import_module("verl.tools.schemas").OpenAIFunctionToolSchema.model_validate(schema)


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
