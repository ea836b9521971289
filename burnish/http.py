"""The HTTP client of all calls to servers: reward servers, sandbox services, vLLM and SGLang.

A server may be broken or hostile. So every call has a deadline for all of it, from name resolution to the last byte;
headers and bodies have a maximum size; redirects are not followed, so that only the configured server gets the request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import ssl
import threading
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

MAX_LINE = 2**16  # bytes of a line of the header
MAX_HEADERS = 128
PIECE = 2**16  # bytes read at a time
_PLAIN = re.compile(r"[!-~]*")  # what the first line and header values may contain

T = TypeVar("T")


class InvalidResponse(ValueError):
    """The server sent something that is not HTTP."""


class ResponseTooLong(ValueError):
    """The response exceeds the maximum size."""


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes


@dataclass(frozen=True)
class _Opened:
    status: int
    headers: Mapping[bytes, bytes]
    reader: asyncio.StreamReader


class Client:
    """Calls to one server; each has a connection of its own, so that closing it ends the call.

    Raises TimeoutError at the deadline, OSError or EOFError if the connection fails, ValueError for a bad response.
    """

    def __init__(
        self, url: str, *, bearer: str | None = None, use_proxy: bool = False, unix_socket: str | None = None
    ) -> None:
        """`use_proxy`: if the environment names one. `unix_socket`: connect to this path instead of the URL's host."""
        self.url, parts = url, urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http(s) URL: {url}")
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.secure else 80)
        self.path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
        if bearer is not None:
            self._headers["Authorization"] = f"Bearer {bearer}"
        if not _PLAIN.fullmatch(self.path) or not all(map(_PLAIN.fullmatch, (bearer or "", self.host))):
            raise ValueError(f"the URL or key has characters that HTTP does not allow: {url}")
        self._unix_socket = unix_socket
        self._proxy = _proxy(parts.scheme, self.host) if use_proxy else None

    def call(self, method: str, path: str, body: bytes, *, timeout: float, max_bytes: int) -> Response:
        """`request` for threads without an event loop."""
        return run_in_background(self.request(method, path, body, timeout=timeout, max_bytes=max_bytes))

    async def request(self, method: str, path: str, body: bytes, *, timeout: float, max_bytes: int) -> Response:
        """`path` is appended to the URL's."""
        async with asyncio.timeout(timeout), contextlib.aclosing(self._open(method, path, body)) as calls:
            opened = await anext(calls)
            content = b"".join([piece async for piece in _pieces(opened, max_bytes)])
            return Response(opened.status, content)

    async def lines(
        self, method: str, path: str, body: bytes, *, timeout: float, max_bytes: int, max_line: int
    ) -> AsyncIterator[bytes | Response]:
        """The lines of a streamed response; a Response instead, if its status is an error.

        Leaving the iteration early closes the connection.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        async with contextlib.aclosing(self._open(method, path, body)) as calls:
            async with asyncio.timeout_at(deadline):
                opened = await anext(calls)
                refused = opened.status >= 300
                content = b"".join([piece async for piece in _pieces(opened, max_line)]) if refused else b""
            if refused:
                yield Response(opened.status, content)
                return
            pieces, line, length = _pieces(opened, max_bytes), [], 0
            while True:
                # Not around the loop: the timeout cancels the task, which runs the caller's code between two lines.
                async with asyncio.timeout_at(deadline):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                first, *others = piece.split(b"\n")
                line.append(first)
                length += len(first)
                if length > max_line:
                    raise ResponseTooLong(f"a line of the response exceeds {max_line} bytes")
                for other in others:
                    yield b"".join(line).strip()
                    line, length = [other], len(other)

    async def _open(self, method: str, path: str, body: bytes) -> AsyncGenerator[_Opened]:
        """Yields once: status, headers and the reader of the body. The connection closes after that."""
        reader, writer = await self._connect()
        try:
            target = self.path + path
            if self._proxy is not None and not self.secure:
                target = f"http://{self._authority}{target or '/'}"
            headers = {"Host": self._authority, **self._headers, "Content-Length": str(len(body))}
            if self._proxy is not None and not self.secure:
                headers |= self._proxy.headers
            lines = [f"{method} {target or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
            await writer.drain()
            status, answer = await _head(reader)
            yield _Opened(status, answer, reader)
        finally:
            writer.close()

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            if self._unix_socket is not None:
                return await asyncio.open_unix_connection(self._unix_socket, limit=MAX_LINE)
            if self._proxy is not None:
                return await self._connect_through(self._proxy)
            context = _tls() if self.secure else None
            return await asyncio.open_connection(self.host, self.port, limit=MAX_LINE, ssl=context)
        except ConnectionRefusedError as error:  # asyncio's message does not say it
            raise ConnectionRefusedError(f"{self._unix_socket or self._authority} refused the connection") from error

    async def _connect_through(self, proxy: _Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=MAX_LINE)
        if self.secure:
            try:
                headers = "".join(f"{name}: {value}\r\n" for name, value in proxy.headers.items())
                tunnel = f"CONNECT {self._authority} HTTP/1.1\r\nHost: {self._authority}\r\n{headers}\r\n"
                writer.write(tunnel.encode("ascii"))
                status, _ = await _head(reader)
                if status != 200:
                    raise InvalidResponse(f"the proxy answered with HTTP {status}")
                await writer.start_tls(_tls(), server_hostname=self.host)
            except BaseException:
                writer.close()
                raise
        return reader, writer


@dataclass(frozen=True)
class _Proxy:
    host: str
    port: int
    headers: Mapping[str, str]


def _proxy(scheme: str, host: str) -> _Proxy | None:
    """The proxy that http_proxy, https_proxy and no_proxy name for this host."""
    url = urllib.request.getproxies().get(scheme)
    if not url or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{scheme}_proxy is not an http URL")
    headers = {}
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
    return _Proxy(parts.hostname, parts.port or 80, headers)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the final response."""
    for _ in range(8):
        words = (await _line(reader)).split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not re.fullmatch(rb"\d{3}\s*", words[1]):
            raise InvalidResponse("the response is not HTTP")
        headers: dict[bytes, bytes] = {}
        while line := (await _line(reader)).strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
            if len(headers) > MAX_HEADERS:
                raise ResponseTooLong(f"the response has more than {MAX_HEADERS} headers")
        if int(words[1]) >= 200:  # 1xx announces another response
            return int(words[1]), headers
    raise InvalidResponse("the response has too many parts")


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()  # ValueError beyond MAX_LINE
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return line


async def _pieces(opened: _Opened, max_bytes: int) -> AsyncIterator[bytes]:
    """The body, in pieces of limited size."""
    total = 0

    def counted(size: int) -> int:
        nonlocal total
        total += size
        if total > max_bytes:
            raise ResponseTooLong(f"the response exceeds {max_bytes / 2**20:.3g} MiB")
        return size

    reader, headers = opened.reader, opened.headers
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        while size := counted(_size((await _line(reader)).partition(b";")[0].strip(), 16)):
            async for piece in _exactly(reader, size):
                yield piece
            await _line(reader)
    elif b"content-length" in headers:
        async for piece in _exactly(reader, counted(_size(headers[b"content-length"], 10))):
            yield piece
    else:
        while piece := await reader.read(PIECE):
            counted(len(piece))
            yield piece


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, PIECE))
        if not piece:
            raise EOFError("the connection was closed in the middle of the response")
        size -= len(piece)
        yield piece


def _size(text: bytes, base: int) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]{1,15}" if base == 16 else rb"[0-9]{1,18}", text):
        raise InvalidResponse("the response has a bad length")
    return int(text, base)


# Downloads, which fsspec does.

CALL_SECONDS = 60.0  # for an HTTP call of fsspec, besides the time for a file
SLOWEST = 50_000  # bytes per second of a download
MAX_DOWNLOAD = 1 << 36  # bytes of a file whose size the server does not tell


def fsspec_options(url: str, size: int | None = 0) -> dict[str, Any]:
    """For fsspec's HTTP file system: no redirects, and a deadline for calls that fetch `size` bytes. {} for others."""
    if not url.startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=CALL_SECONDS + (MAX_DOWNLOAD if size is None else size) / SLOWEST)
    return {"allow_redirects": False, "client_kwargs": {"timeout": timeout, "raise_for_status": _refuse_redirect}}


async def _refuse_redirect(response: Any) -> None:
    """fsspec checks other statuses."""
    if 300 <= response.status < 400:
        target = response.headers.get("Location", "nowhere")
        raise OSError(f"the server redirects to {target!r}, which is not followed; if you trust it, use that URL")


def size_limit(size: int | None) -> Callable[..., None]:
    """A hook of fsspec's progress callback: it ends a download of more bytes than were announced."""
    limit = MAX_DOWNLOAD if size is None else size

    def check(_: int | None, value: int) -> None:
        if value > limit:
            raise OSError(f"the server sent more than {limit} bytes")

    return check


class _Background:
    """An event loop in a thread of this process, started on first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process = 0  # a forked child has no such thread

    def get(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None or self.process != os.getpid():
                self.loop, self.process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self.loop.run_forever, name="burnish-http", daemon=True).start()
            return self.loop


_BACKGROUND = _Background()


def run_in_background(work: Coroutine[Any, Any, T]) -> T:
    future = asyncio.run_coroutine_threadsafe(work, _BACKGROUND.get())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
