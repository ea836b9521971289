"""A stand-in of the Hugging Face hub's HTTP API: repositories that the real client creates and commits to.

It knows the calls of `create_repo`, `model_info` and `upload_folder` over git LFS. Xet, the hub's newer storage, is not
part of it: clients are told to do without.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "standin0123456789abcdef"
USER = "ada"
COMMIT = "0" * 40


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class HubStandIn(ThreadingHTTPServer):
    """`repositories` by name; `fail` is (part of a path, status) of requests to refuse."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}  # of LFS, by SHA-256
        self.requests: list[str] = []
        self.fail: tuple[str, int] | None = None
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, format: str, *args: Any) -> None:
        self.server.requests.append(format % args)

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = self._chunks()
        path = self.path.partition("?")[0]
        fail = self.server.fail
        if fail is not None and fail[0] in path:
            return self._send(fail[1], {"error": "refused by the stand-in"})
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"error": "Invalid username or password."})
        for verb, pattern, handle in _ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match is not None:
                return self._send(*handle(self, body, **match.groupdict()))
        return self._send(404, {"error": f"the stand-in has no {method} {path}"})

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if "error" in content:
            self.send_header("X-Error-Message", content["error"])
        self.end_headers()
        self.wfile.write(body)

    def create(self, body: bytes) -> tuple[int, dict[str, Any]]:
        wanted = json.loads(body)
        name = f"{wanted['organization'] or USER}/{wanted['name']}"
        url = {"url": f"{self.server.url}/{name}"}
        if name in self.server.repositories:
            return 409, url | {"error": "You already created this model repo"}
        self.server.repositories[name] = Repository(
            wanted.get("visibility") == "private" or bool(wanted.get("private"))
        )
        return 200, url

    def info(self, body: bytes, repo: str) -> tuple[int, dict[str, Any]]:
        found = self.server.repositories.get(repo)
        if found is None:
            return 404, {"error": "Repository not found"}
        names = [{"rfilename": name} for name in found.files]
        return 200, {"id": repo, "private": found.private, "sha": COMMIT, "siblings": names, "tags": [], "downloads": 0}

    def validate(self, body: bytes) -> tuple[int, dict[str, Any]]:
        content = json.loads(body)["content"]
        errors = [] if content.startswith("---\n") else [{"message": "no metadata"}]
        return 200, {"errors": errors, "warnings": []}

    def preupload(self, body: bytes, repo: str) -> tuple[int, dict[str, Any]]:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".png")) else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
        return 200, {"files": files}

    def batch(self, body: bytes, repo: str) -> tuple[int, dict[str, Any]]:
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.server.url}/lfs/{entry['oid']}", "header": {}}}}
            for entry in json.loads(body)["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def store(self, body: bytes, oid: str) -> tuple[int, dict[str, Any]]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "the content has another hash"}
        self.server.objects[oid] = body
        return 200, {}

    def commit(self, body: bytes, repo: str) -> tuple[int, dict[str, Any]]:
        target = self.server.repositories[repo]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                target.messages.append(value["summary"])
            elif line["key"] == "file":
                target.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                target.files[value["path"]] = self.server.objects[value["oid"]]
        url = f"{self.server.url}/{repo}/commit/{COMMIT}"
        return 200, {"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""}


_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("GET", f"/api/models/{_REPO}(/revision/main)?", _Handler.info),
    ("POST", f"/api/models/{_REPO}/preupload/main", _Handler.preupload),
    ("POST", f"/{_REPO}.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", _Handler.store),
    ("POST", f"/api/models/{_REPO}/commit/main", _Handler.commit),
]
