"""mcp: the tools of MCP servers, started by a command or reached over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.errors import UserError, install_extra
from burnish.rollout.chat.pictures import read_pictures
from burnish.rollout.tools.builtin.mcp_client import McpServer, ServerGone, ServerSpec, ServerTool, images_of, text_of
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.execution import LoopThread
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import Tool, ToolLimits, ToolResult

START_SECONDS = 60.0  # for all servers together; `npx` and `uvx` download on first use
CLOSE_SECONDS = 10.0
EXAMPLE = '{"mcpServers": {"files": {"command": "my-server", "args": []}, "web": {"url": "http://host:8000/mcp"}}}'
TRANSPORT_NAMES = {"http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse", "stdio": "stdio"}


class Servers:
    """The servers of an entry, in a thread of their own: their sessions outlive the event loop of a step."""

    def __init__(self, specs: Sequence[ServerSpec]) -> None:
        self.servers = {spec.name: McpServer(spec) for spec in specs}
        self.thread = LoopThread("tool-mcp")
        self._closed = False

    def tools(self) -> list[ServerTool]:
        """The tools of all servers. ServerGone if one cannot be reached."""

        async def listed() -> list[ServerTool]:
            async with asyncio.timeout(START_SECONDS):
                lists = await asyncio.gather(*(server.tools() for server in self.servers.values()))
            return [tool for tools in lists for tool in tools]

        return self.thread.submit(listed()).result()

    async def run(self, awaitable: Awaitable[Any]) -> Any:
        return await asyncio.wrap_future(self.thread.submit(awaitable))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True

        async def close_all() -> None:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(server.close() for server in self.servers.values()), return_exceptions=True)

        try:
            self.thread.submit(close_all()).result()
        finally:
            self.thread.close()


class McpTool(Tool):
    """One tool of a server. All conversations share the session with it."""

    def __init__(
        self, schema: dict[str, Any], limits: ToolLimits, servers: Servers, tool: ServerTool, parse: Callable[..., Any]
    ) -> None:
        super().__init__(schema, limits)
        self.servers = servers
        self.server = servers.servers[tool.server]
        self.remote_name = tool.name
        self.parse = parse

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        parts, structured, failed = await self.servers.run(self.server.call(self.remote_name, arguments))
        text = self.parse(parts, structured)
        images = read_pictures(images_of(parts), "image", f"an answer of the MCP server {self.server.spec.name}")
        text = f"Error: {text}" if failed else text
        return ToolResult(text, failed=failed, images=images, pictures_optional=True)

    def shut_down(self) -> None:
        self.servers.close()


def build(entry: ToolEntry, cls: Any = None) -> list[Tool]:
    """`mcp: {mcp_servers_config_path, tool_selected_list}`. `cls` is a user's subclass of verl's MCPBaseTool."""
    entry.check_options("rate_limit", "timeout", "use_mcp")
    if find_spec("mcp") is None:
        raise entry.error("mcp is not installed", "class_name", entry.class_name, hint=install_extra("mcp"))
    # In verl, rate_limit bounds the calls that all servers together get per second.
    rate_limit = None if entry.config.get("rate_limit") is None else entry.option("rate_limit", 1.0)
    limits = entry.read_limits(timeout=entry.option("timeout", 30.0), rate_limit=rate_limit)
    servers = Servers(read_servers(entry))
    try:
        offered = select_tools(servers.tools(), entry)
        schemas = [_schema(tool, name, entry) for tool, name in zip(offered, unique_names(offered), strict=True)]
    except (ServerGone, TimeoutError) as error:
        servers.close()
        problem = str(error) or f"no answer within {START_SECONDS:g} s"
        path = entry.mcp.get("mcp_servers_config_path")
        raise entry.error(f"{problem}. Check its command or address", "mcp.mcp_servers_config_path", path) from error
    except UserError:
        servers.close()
        raise
    parsers = [_parser(cls, entry, schema) for schema in schemas]
    return [
        McpTool(schema, limits, servers, tool, parse)
        for schema, tool, parse in zip(schemas, offered, parsers, strict=True)
    ]


def read_servers(entry: ToolEntry) -> list[ServerSpec]:
    """The servers of the JSON file."""
    key, path = "mcp.mcp_servers_config_path", entry.mcp.get("mcp_servers_config_path")
    if not isinstance(path, str):
        raise entry.error("the file with the MCP servers is missing", key, path, allowed=EXAMPLE)
    file = next((file for file in (Path(path).expanduser(), Path(entry.folder, path)) if file.is_file()), None)
    if file is None:
        raise entry.error("no such file", key, path, allowed=EXAMPLE)
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise entry.error(f"not valid JSON: {error}", key, path, allowed=EXAMPLE) from error
    servers = content.get("mcpServers") if isinstance(content, Mapping) else None
    if not isinstance(servers, Mapping) or not servers:
        raise entry.error("the file has no servers", key, path, allowed=EXAMPLE)
    return [_server(name, server, entry, path) for name, server in servers.items()]


def _server(name: str, server: Any, entry: ToolEntry, path: str) -> ServerSpec:
    key = f"mcpServers.{name}"
    if not isinstance(server, Mapping) or isinstance(server.get("command"), str) == isinstance(server.get("url"), str):
        shown = sorted(server) if isinstance(server, Mapping) else server  # values may be secrets
        raise entry.error(f"{path}: a server needs either a command or a url", key, shown, allowed=EXAMPLE)
    transport = server.get("transport", server.get("type"))
    if transport is not None and transport not in TRANSPORT_NAMES:
        raise entry.error(f"{path}: no such transport", key, transport, allowed=list(TRANSPORT_NAMES))
    headers = dict(server.get("headers") or {})
    if server.get("auth_token"):
        headers["Authorization"] = f"Bearer {server['auth_token']}"
    return ServerSpec(
        name,
        server.get("command"),
        tuple(map(str, server.get("args") or ())),
        server.get("env"),
        server.get("cwd"),
        server.get("url"),
        headers,
        None if transport is None or server.get("command") else TRANSPORT_NAMES[transport],
    )


def select_tools(tools: list[ServerTool], entry: ToolEntry) -> list[ServerTool]:
    """Those of `tool_selected_list`, by their own name or as server__tool; all without a list."""
    selected = entry.mcp.get("tool_selected_list")
    if not selected:
        if not tools:
            raise entry.error("the MCP servers offer no tools", "mcp.mcp_servers_config_path")
        return tools
    unknown = [name for name in selected if not any(name in (tool.name, qualified(tool)) for tool in tools)]
    if unknown:
        raise entry.error(
            "no MCP server offers this tool",
            "mcp.tool_selected_list",
            unknown[0],
            allowed=sorted({tool.name for tool in tools}),
        )
    return [tool for tool in tools if tool.name in selected or qualified(tool) in selected]


def unique_names(tools: list[ServerTool]) -> list[str]:
    """The name of each tool. Tools that share one are qualified with their server's name."""
    counts = Counter(tool.name for tool in tools)
    return [tool.name if counts[tool.name] == 1 else qualified(tool) for tool in tools]


def qualified(tool: ServerTool) -> str:
    return f"{tool.server}__{tool.name}"


def _schema(tool: ServerTool, name: str, entry: ToolEntry) -> dict[str, Any]:
    parameters = {key: value for key, value in tool.parameters.items() if key not in ("$schema", "title")}
    function = {"name": name, "description": tool.description, "parameters": parameters}
    return normalize_schema(function, f"{entry.where}: MCP server {tool.server}")


def _parser(cls: Any, entry: ToolEntry, schema: dict[str, Any]) -> Callable[[list[Any], Any], str]:
    """How a result becomes text: by a user's `_parse_tool_result`, which returns (text, metadata), if there is one."""
    if cls is None or not hasattr(cls, "_parse_tool_result"):
        return text_of
    instance = cls(config=entry.config, tool_schema=schema)
    return lambda parts, structured: str(instance._parse_tool_result(parts)[0])
