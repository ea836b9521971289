"""Sessions with MCP servers: the only file that imports the library `mcp`, versions 1.30 and 2.x."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

RELAY = Path(__file__).with_name("mcp_relay.py")
MAX_BYTES = 32 * 2**20  # of one HTTP response
PING_SECONDS = 5.0
MAX_PAUSE = 60.0  # seconds between two attempts to reach a server that is gone
MAX_PAGES = 100  # of a list of tools
_MAX_MESSAGE = 2000


class ServerGone(RuntimeError):
    """The server cannot be reached."""


@dataclass(frozen=True)
class ServerSpec:
    """An entry of `mcpServers`: a command to start, or an address."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: str | None = None  # http or sse; None: tried in the order that the address suggests

    def transports(self) -> list[str]:
        if self.command is not None:
            return ["stdio"]
        if self.transport is not None:
            return [self.transport]
        return ["sse", "http"] if "/sse" in urlsplit(self.url or "").path else ["http", "sse"]


@dataclass(frozen=True)
class ServerTool:
    """A tool that a server offers."""

    server: str
    name: str
    description: str
    parameters: dict[str, Any]


class McpServer:
    """A server and the session with it. All methods run in one event loop, that of the thread for MCP."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._session: Any = None
        self._holder: asyncio.Task[None] | None = None  # keeps the session open, and closes it in the same task
        self._stop: asyncio.Event | None = None
        self._connecting: asyncio.Lock | None = None
        self._num_failures = 0
        self._retry_at = 0.0
        self._reason = ""
        self._printed = ""  # what a server that was started here printed before it ended

    async def tools(self) -> list[ServerTool]:
        """The tools that the server offers. ServerGone if it cannot be reached."""
        session, tools, params = await self._connected(), [], None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(params=params)
            for tool in page.tools:
                parameters = _field(tool, "input_schema", "inputSchema")
                tools.append(ServerTool(self.spec.name, tool.name, tool.description or "", dict(parameters)))
            cursor = _field(page, "next_cursor", "nextCursor")
            if not cursor:
                return tools
            params = _page_after(cursor)
        return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[list[Any], Any, bool]:
        """The parts of a result, its structured form, and whether it is an error."""
        session = await self._connected()
        try:
            result = await self._while_open(session.call_tool(name, arguments))
        except ServerGone:
            raise
        except asyncio.CancelledError:  # it took too long: is the server alive at all?
            self._check_soon(session)
            raise
        except Exception as error:
            if not await self._answers(session):
                await self._drop(session, error)
                raise ServerGone(f"the MCP server {self.spec.name} is gone: {self._reason}") from error
            raise
        self._num_failures = 0
        structured = _field(result, "structured_content", "structuredContent")
        return list(result.content), structured, bool(_field(result, "is_error", "isError"))

    async def _while_open(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call, or ServerGone when its session is closed: mcp 1.x leaves such calls pending."""
        call, holder = asyncio.ensure_future(work), self._holder
        assert holder is not None
        try:
            await asyncio.wait([call, holder], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ServerGone(f"the MCP server {self.spec.name} is gone: {self._reason or 'its session was closed'}")
            return call.result()
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait([call])

    async def close(self) -> None:
        await self._drop(self._session, None)

    async def _connected(self) -> Any:
        """The session; opened anew if the server was lost, with growing pauses."""
        self._connecting = self._connecting or asyncio.Lock()
        async with self._connecting:
            if self._session is not None and self._holder is not None and not self._holder.done():
                return self._session
            if time.monotonic() < self._retry_at:
                raise ServerGone(f"the MCP server {self.spec.name} is gone: {self._reason}")
            problems = []
            for transport in self.spec.transports():
                try:
                    self._session = await self._open(transport)
                    return self._session
                except ServerGone as error:
                    problems.append(str(error))
            self._failed(problems[0])
            raise ServerGone(f"the MCP server {self.spec.name} cannot be reached: {problems[0]}")

    async def _open(self, transport: str) -> Any:
        """Start the task that holds the session, and wait for the session."""
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(transport, ready, self._stop))
        try:
            return await asyncio.shield(ready)
        except asyncio.CancelledError:
            self._stop.set()
            self._holder.cancel()
            raise

    async def _hold(self, transport: str, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        from mcp import ClientSession

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            try:
                async with (
                    TRANSPORTS[transport](self.spec, errors) as streams,
                    ClientSession(streams[0], streams[1]) as session,
                ):
                    await session.initialize()
                    ready.set_result(session)
                    await stop.wait()
            except (Exception, asyncio.CancelledError) as error:  # also groups of errors
                reason = _printed(errors) or _message(error)
                if not ready.done():
                    ready.set_exception(ServerGone(reason))
                elif not stop.is_set():
                    self._failed(reason)
            finally:
                self._printed = _printed(errors)

    async def _answers(self, session: Any) -> bool:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await session.send_ping()
        except Exception:  # whatever it is, the session is of no use
            return False
        return True

    def _check_soon(self, session: Any) -> None:
        async def check() -> None:
            if not await self._answers(session):
                await self._drop(session, TimeoutError(f"no answer to a ping within {PING_SECONDS:g} s"))

        self._checking = asyncio.get_running_loop().create_task(check())

    async def _drop(self, session: Any, error: Exception | None) -> None:
        """Close the session, unless it was replaced meanwhile."""
        if session is None or session is not self._session:
            return
        holder, stop, self._session = self._holder, self._stop, None
        if stop is not None:
            stop.set()
        if holder is not None:
            await asyncio.wait([holder], timeout=2 * PING_SECONDS)
            holder.cancel()
        if error is not None:
            self._failed(self._printed or _message(error))

    def _failed(self, reason: str) -> None:
        self._num_failures += 1
        pause = 0.0 if self._num_failures == 1 else min(MAX_PAUSE, 2.0**self._num_failures)
        self._retry_at, self._reason = time.monotonic() + pause, reason
        logger.warning("the MCP server %s failed (%d times in a row): %s", self.spec.name, self._num_failures, reason)


@contextlib.asynccontextmanager
async def _stdio(spec: ServerSpec, errors: Any) -> AsyncIterator[Any]:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    assert spec.command is not None
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(RELAY), spec.command, *spec.args],
        env=None if spec.env is None else dict(spec.env),
        cwd=spec.cwd,
        encoding_error_handler="replace",
    )
    async with stdio_client(parameters, errlog=errors) as streams:
        yield streams


@contextlib.asynccontextmanager
async def _http(spec: ServerSpec, errors: Any) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    assert spec.url is not None
    async with (
        _http_client(headers=dict(spec.headers)) as client,
        streamable_http_client(spec.url, http_client=client) as streams,
    ):
        yield streams


@contextlib.asynccontextmanager
async def _sse(spec: ServerSpec, errors: Any) -> AsyncIterator[Any]:
    from mcp.client.sse import sse_client

    assert spec.url is not None
    async with sse_client(spec.url, headers=dict(spec.headers), httpx_client_factory=_http_client) as streams:
        yield streams


TRANSPORTS: dict[str, Callable[[ServerSpec, Any], Any]] = {"stdio": _stdio, "http": _http, "sse": _sse}


def _http_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
    """The library's HTTP client, with a bound on every response. It is of httpx in 1.x and of httpx2 in 2.x."""
    from mcp.shared._httpx_utils import create_mcp_http_client

    client = create_mcp_http_client(headers, timeout, auth)
    library = sys.modules[type(client).__module__.partition(".")[0]]

    class Bounded(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            async for chunk in self.stream:
                total += len(chunk)
                if total > MAX_BYTES:
                    raise ValueError(f"a response of more than {MAX_BYTES / 2**20:g} MiB")
                yield chunk

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def bound(response: Any) -> None:
        response.stream = Bounded(response.stream)

    client.event_hooks["response"].append(bound)
    return client


def _page_after(cursor: str) -> Any:
    from mcp.types import PaginatedRequestParams

    return PaginatedRequestParams(cursor=cursor)


def _field(value: Any, *names: str) -> Any:
    """A field by its name in 2.x, else by that in 1.x."""
    return next((getattr(value, name) for name in names if hasattr(value, name)), None)


def _printed(errors: Any) -> str:
    errors.seek(0)
    return " ".join(errors.read(_MAX_MESSAGE).split())


def _message(error: BaseException) -> str:
    """The innermost message of an error or a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]


def text_of(parts: list[Any], structured: Any) -> str:
    """The text of a result."""
    texts = [part.text for part in parts if getattr(part, "type", None) == "text"]
    if not texts and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(texts)


def images_of(parts: list[Any]) -> list[bytes]:
    """The images of a result; sound and links to resources are left out."""
    encoded = [part.data for part in parts if getattr(part, "type", None) == "image"]
    return [base64.b64decode(text) for text in encoded]
