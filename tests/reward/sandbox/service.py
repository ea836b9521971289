"""A small sandbox service that speaks SandboxFusion's protocol and really runs the programs, in the local sandbox."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from burnish.reward.sandbox.local import Machine
from burnish.reward.sandbox.settings import SandboxSettings


def run_payload(payload):
    """The honest answer to a request."""
    settings = SandboxSettings(timeout=payload["run_timeout"], memory_mb=payload["memory_limit_MB"])
    with Machine(settings).prepared(payload["code"], payload["language"]) as run:
        ran = run(payload["stdin"])
    status = "TimeLimitExceeded" if ran.killed == "time" else "Finished" if ran.killed is None else "Error"
    result = {
        "status": status,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "return_code": ran.status,
        "execution_time": ran.seconds,
    }
    return {"status": "Success" if ran.ok else "Failed", "message": "", "compile_result": None, "run_result": result}


class Server(ThreadingHTTPServer):
    """`answer(payload, count)`: an object to send as JSON, bytes, (status, bytes, headers), or None to hang up."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.payloads = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/run_code"

    def handle_error(self, request, client_address):
        """A client that hung up is no news."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.payloads.append(payload)
            count = len(self.server.payloads)
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            answer = self.server.answer(payload, count)
        finally:
            with self.server.lock:
                self.server.at_once -= 1
        if answer is not None:
            self.reply(answer)

    def reply(self, answer):
        status, body, headers = answer if isinstance(answer, tuple) else (200, answer, {})
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """The tests' output is theirs."""


@contextlib.contextmanager
def serving(answer=lambda payload, count: run_payload(payload)):
    """A server until the block ends."""
    server = Server(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slowly(payload, count):
    """An honest answer that takes a while, so that requests overlap."""
    time.sleep(0.1)
    return run_payload(payload)
