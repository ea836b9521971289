"""Stand-in for a SandboxFusion service: same protocol, runs the programs in the local sandbox."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.settings import SandboxSettings


def run_payload(payload):
    """The correct response to a request."""
    settings = SandboxSettings(timeout=payload["run_timeout"], memory_mb=payload["memory_limit_MB"])
    with LocalRunner(settings).prepare(payload["code"], payload["language"]) as run:
        result = run(payload["stdin"])
    status = "TimeLimitExceeded" if result.killed == "time" else "Finished" if result.killed is None else "Error"
    run_result = {
        "status": status,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "return_code": result.status,
        "execution_time": result.seconds,
    }
    return {
        "status": "Success" if result.ok else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": run_result,
    }


class Server(ThreadingHTTPServer):
    """`respond(payload, count)`: an object to send as JSON, bytes, (status, bytes, headers), or None to hang up."""

    daemon_threads = True

    def __init__(self, respond):
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.payloads = []
        self.num_running = self.max_running = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/run_code"

    def handle_error(self, request, client_address):
        """Ignore clients that disconnect."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.payloads.append(payload)
            count = len(self.server.payloads)
            self.server.num_running += 1
            self.server.max_running = max(self.server.max_running, self.server.num_running)
        try:
            response = self.server.respond(payload, count)
        finally:
            with self.server.lock:
                self.server.num_running -= 1
        if response is not None:
            self.reply(response)

    def reply(self, response):
        status, body, headers = response if isinstance(response, tuple) else (200, response, {})
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Do not log requests."""


@contextlib.contextmanager
def serving(respond=lambda payload, count: run_payload(payload)):
    """Run a server inside the `with` block."""
    server = Server(respond)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slowly(payload, count):
    """Respond correctly after a delay, so that requests overlap."""
    time.sleep(0.1)
    return run_payload(payload)
