"""SGLang's HTTP protocol: the door; host.py is behind it."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglang.protocol import Bad, check_fields
from sglang.srt.server_args import parse


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def handler(host: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            calls = {"/health": lambda: "", "/get_server_info": host.get_server_info}
            self._answer(calls.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")

            def call() -> Any:
                check_fields(self.path, body)
                return getattr(host, self.path[1:])(body)

            self._answer(call)

        def _answer(self, call: Any) -> None:
            key, given = host.arguments.api_key, self.headers["Authorization"]
            try:
                if key and self.path != "/health" and given != f"Bearer {key}":
                    raise Bad(401, "Unauthorized")
                if call is None:
                    raise Bad(404, "Not Found")
                status, told = 200, call()
            except Bad as bad:
                status, told = bad.status, {"error": {"message": str(bad)}}
            content = told.encode() if isinstance(told, str) else json.dumps(told).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # whoever asked has hung up

        def log_message(self, *words: object) -> None:
            """Be quiet."""

    return Handler


def main() -> None:
    """Bad arguments end it before anything heavy is imported."""
    arguments = parse(sys.argv[1:])
    from sglang.host import Host

    host = Host(arguments)
    Server((arguments.host, arguments.port), handler(host)).serve_forever()


if __name__ == "__main__":
    main()
