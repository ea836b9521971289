"""A minimal asyncio HTTP client for JSON calls to one server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from burnish.errors import UserError
from burnish.rollout.engine import EngineDied

Opened = tuple[int, dict[bytes, bytes], asyncio.StreamReader]


class Refused(RuntimeError):
    """The server answered with an HTTP error status."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"the server answered {path} with {status}: {text}")
        self.status = status


def check_address(url: str, key: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise UserError("not a server address", key=key, value=url, hint=f"{key}=http://127.0.0.1:30000")


class HttpClient:
    """One connection per call: calls are few and long, and a broken connection means that the server died."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self.host, self.port = parts.hostname, parts.port or 80

    async def get(self, path: str, limit: float) -> Any:
        return await self._call("GET", path, b"", limit)

    async def post(self, path: str, body: dict[str, Any], limit: float | None) -> Any:
        """The server's answer as JSON. `limit` in seconds; without one, the caller must detect a dead server."""
        return await self._call("POST", path, json.dumps(body).encode(), limit)

    async def _call(self, method: str, path: str, body: bytes, limit: float | None) -> Any:
        try:
            async with asyncio.timeout(limit):
                status, content = await self._exchange(method, path, body)
        except TimeoutError as error:
            raise EngineDied(f"{self.url}{path} did not answer in {limit:g} seconds") from error
        except (OSError, EOFError, ValueError) as error:  # connection refused or broken, or not HTTP
            raise EngineDied(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if status >= 300:
            raise Refused(path, status, _message(content))
        try:
            return json.loads(content)
        except ValueError:
            return content.decode(errors="replace")  # some calls answer with plain text

    async def lines(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The lines of a streamed answer. Leaving the iteration early closes the connection."""
        try:
            async with contextlib.aclosing(self._opened("POST", path, json.dumps(body).encode())) as opened:
                status, headers, reader = await anext(opened)
                if status >= 300:
                    raise Refused(path, status, _message(await _body(reader, headers)))
                rest = b""
                async for piece in _pieces(reader, headers):
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield line.strip()
        except (OSError, EOFError, ValueError) as error:
            raise EngineDied(f"{self.url}{path}: {type(error).__name__}: {error}") from error

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        async with contextlib.aclosing(self._opened(method, path, body)) as opened:
            status, headers, reader = await anext(opened)
            return status, await _body(reader, headers)

    async def _opened(self, method: str, path: str, body: bytes) -> AsyncGenerator[Opened]:
        """Yields once: status, headers and the body's reader. The connection closes after that."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = [
                f"{method} {path} HTTP/1.1",
                f"Host: {self.host}:{self.port}",
                "Connection: close",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}",
            ]
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
            status = int((await _line(reader)).partition(b" ")[2][:3])
            headers = {}
            while line := (await _line(reader)).strip():
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
            yield status, headers, reader
        finally:
            writer.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return line


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    return b"".join([piece async for piece in _pieces(reader, headers)])


async def _pieces(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> AsyncIterator[bytes]:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        while size := int((await _line(reader)).partition(b";")[0], 16):
            yield await reader.readexactly(size)
            await _line(reader)
    elif b"content-length" in headers:
        yield await reader.readexactly(int(headers[b"content-length"]))
    else:
        yield await reader.read()


def _message(content: bytes) -> str:
    """The error message of an answer: JSON in one of a few shapes, or plain text."""
    text = content.decode(errors="replace").strip()
    try:
        error = json.loads(text)
    except ValueError:
        return text
    for name in ("error", "detail", "message"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)
