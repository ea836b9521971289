"""The web server of `burnish view`: static files, and answers of the api as JSON. aiohttp is imported here only.

Whoever has the URL's token may read; a page of another site may not (Host header, SameSite cookie), and text of models
cannot run as a script in the page (Content-Security-Policy, and the page inserts text only as text).
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError, install_extra
from burnish.view.api import NotFound, ViewApi

if TYPE_CHECKING:
    from aiohttp import web

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MIN_COMPRESSED = 2000  # bytes
MAX_URL = 16_000
OPEN = "/open/"  # followed by the token: sets a cookie and leads to the page

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


def static_files() -> dict[str, bytes]:
    """The front end by file name."""
    folder = resources.files("burnish.view") / "static"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(tuple(TYPES))}


def new_token() -> str:
    return secrets.token_urlsafe(24)


def is_allowed_host(header: str, extra: frozenset[str] = frozenset()) -> bool:
    """Whether a Host header names this machine: an address, localhost or its name. Another name may be an attacker's
    that resolves to 127.0.0.1 (DNS rebinding)."""
    host = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() and not header.endswith("]") else header
    host = host.removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        return host == "localhost" or host in extra


def make_app(api: ViewApi, token: str, *, hosts: frozenset[str] = frozenset()) -> web.Application:
    """The application. `hosts` are further names of this machine."""
    from aiohttp import web

    files, cookie = static_files(), f"burnish_view_{secrets.token_hex(4)}"

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await _guarded(request, handler)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_allowed_host(request.headers.get("Host", ""), hosts):
            return web.Response(status=403, text="this name is not one of this machine's (burnish view --allow-host)\n")
        if request.method not in ("GET", "HEAD") or len(request.raw_path) > MAX_URL:
            return web.Response(status=405, text="only GET\n")
        if request.path.startswith(OPEN) and _matches(request.path.removeprefix(OPEN), token):
            redirect = web.Response(status=303, headers={"Location": "/"})
            redirect.set_cookie(cookie, token, httponly=True, samesite="Strict", path="/")
            return redirect
        header = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not _matches(request.cookies.get(cookie, ""), token) and not _matches(header, token):
            return web.Response(status=401, text="open the URL that `burnish view` printed: it has a token\n")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n")

    async def page(request: web.Request) -> web.StreamResponse:
        return _file(files, "index.html")

    async def static(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in files:
            raise web.HTTPNotFound
        return _file(files, name)

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.to_thread(_encoded, api, request.match_info["name"], dict(request.query))
        except (NotFound, OSError, UserError) as error:
            return web.json_response({"error": str(error)}, status=404)
        headers = {"Content-Type": "application/json"}
        if len(body) > MIN_COMPRESSED and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = await asyncio.to_thread(gzip.compress, body, 1), "gzip"
        return web.Response(body=body, headers=headers)

    async def profile(request: web.Request) -> web.StreamResponse:
        try:
            path = await asyncio.to_thread(api.profile_path, request.match_info["run"], request.match_info["name"])
        except (NotFound, OSError) as error:
            raise web.HTTPNotFound from error
        name = re.sub(r"[^\w.+-]", "_", f"{path.parent.name}_{path.name}", flags=re.ASCII)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": "application/octet-stream"}
        return web.FileResponse(path, headers=headers)

    app = web.Application(middlewares=[guard])
    app.router.add_get("/", page)
    app.router.add_get("/static/{name}", static)
    app.router.add_get("/api/{name}", answer)
    app.router.add_get("/profile/{run}/{name:.+}", profile)
    return app


def serve(api: ViewApi, host: str, port: int, hosts: frozenset[str], started: Callable[[str], None]) -> None:
    """Serve until Ctrl-C. `started` gets the URL."""
    try:
        from aiohttp import web
    except ImportError as error:
        raise UserError("the viewer needs aiohttp, which is not installed", hint=install_extra("view")) from error
    token, listener = new_token(), _bind(host, port)
    address = listener.getsockname()
    name = f"[{address[0]}]" if ":" in address[0] else "127.0.0.1" if address[0] == "0.0.0.0" else address[0]

    async def ready(app: web.Application) -> None:
        started(f"http://{name}:{address[1]}{OPEN}{token}")

    app = make_app(api, token, hosts=hosts)
    app.on_startup.append(ready)
    web.run_app(app, sock=listener, print=None, access_log=None, handle_signals=True)


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket: connections that come before the server is ready wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        problem = f"cannot listen on {host}:{port}: {error.strerror}"
        raise UserError(problem, hint="burnish view --port 0 takes a free port") from error
    return listener


def _encoded(api: ViewApi, name: str, query: dict[str, str]) -> bytes:
    return json.dumps(api.answer(name, query), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="replace"
    )


def _file(files: dict[str, bytes], name: str) -> Any:
    from aiohttp import web

    return web.Response(body=files[name], content_type=TYPES[name[name.rindex(".") :]], charset="utf-8")


def _matches(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
