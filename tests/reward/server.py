"""A real reward server on this machine, as good or bad as a test wants it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Answers with what `answer(asked, number)` gives: an object for JSON, or (status, bytes). Keeps what was asked."""

    daemon_threads = True

    def __init__(self, answer):
        self.answer, self.asked, self.lock = answer, [], threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/get_reward"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(asked)
            number = len(self.server.asked)
        try:
            given = self.server.answer(asked, number)
            status, body = given if isinstance(given, tuple) else (200, json.dumps(given).encode())
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            for piece in [body] if isinstance(body, bytes) else body:
                self.wfile.write(piece)
        except OSError:
            self.close_connection = True  # whoever asked has hung up

    def log_message(self, *words):
        """Be quiet."""
