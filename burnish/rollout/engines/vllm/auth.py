"""RequireKey: ASGI middleware that lets a vLLM server answer only requests that carry its key.

vLLM's own --api-key protects paths that begin with /v1; the endpoints for weights, pause, sleep and worker methods stay
open. Started with `--middleware burnish.rollout.engines.vllm.auth.RequireKey`, the server refuses all of them.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from burnish.rollout.engines.private import KEY_VARIABLE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequireKey:
    """The key is that of the environment variable BURNISH_ENGINE_KEY; without one, nothing is answered."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        key = os.environ.get(KEY_VARIABLE, "")
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "a key is required"}'})

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return self._expected is not None and len(given) == 1 and hmac.compare_digest(given[0], self._expected)
