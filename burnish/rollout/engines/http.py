"""JSON calls to the server of an engine, on burnish/http.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from burnish.errors import UserError
from burnish.http import Client, Response
from burnish.rollout.engine import EngineDied

UNIX = "unix:"  # the beginning of addresses that are the path of a unix socket
MAX_BYTES = 1 << 30  # of a response: log-probs of a long sequence take a hundred megabytes
MAX_LINE = 1 << 25  # of one event of a stream
GENERATE_TIMEOUT = 24 * 3600.0  # seconds for a response; a server that dies before is noticed by health checks


class Refused(RuntimeError):
    """The server answered with an HTTP error status."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"the server answered {path} with {status}: {text}")
        self.status = status


def check_address(url: str, key: str) -> None:
    """`http://host:port`, or the path of a unix socket after `unix:`."""
    parts = urlsplit(url)
    if url.startswith(f"{UNIX}/"):
        return
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise UserError("not a server address", key=key, value=url, hint=f"{key}=http://127.0.0.1:30000")


class HttpClient:
    """Calls are few and long, and a broken connection means that the server died."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        self._client = Client(self.url if path is None else "http://localhost", bearer=api_key, unix_socket=path)

    async def get(self, path: str, limit: float) -> Any:
        return await self._call("GET", path, b"", limit)

    async def post(self, path: str, body: dict[str, Any], limit: float = GENERATE_TIMEOUT) -> Any:
        """The server's answer as JSON. `limit`: seconds for the whole call."""
        return await self._call("POST", path, json.dumps(body).encode(), limit)

    async def _call(self, method: str, path: str, body: bytes, limit: float) -> Any:
        try:
            response = await self._client.request(method, path, body, timeout=limit, max_bytes=MAX_BYTES)
        except TimeoutError as error:
            raise EngineDied(f"{self.url}{path} did not answer in {limit:g} seconds") from error
        except (OSError, EOFError, ValueError) as error:  # connection refused or broken, or not HTTP
            raise EngineDied(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if response.status >= 300:
            raise Refused(path, response.status, _message(response.body))
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            return response.body.decode(errors="replace")  # some calls answer with plain text

    async def lines(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The lines of a streamed answer. Leaving the iteration early closes the connection."""
        content, limits = json.dumps(body).encode(), {"max_bytes": MAX_BYTES, "max_line": MAX_LINE}
        try:
            async for line in self._client.lines("POST", path, content, timeout=GENERATE_TIMEOUT, **limits):
                if isinstance(line, Response):
                    raise Refused(path, line.status, _message(line.body))
                yield line
        except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
            raise EngineDied(f"{self.url}{path}: {type(error).__name__}: {error}") from error


def _message(content: bytes) -> str:
    """The error message of an answer: JSON in one of a few shapes, or plain text."""
    text = content.decode(errors="replace").strip()
    try:
        error = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "detail", "message"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)
