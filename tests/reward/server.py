"""A local reward server whose responses each test defines."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Responds with `respond(request, number)`: an object to send as JSON, or (status, bytes). Records the requests."""

    daemon_threads = True

    def __init__(self, respond):
        self.respond, self.requests, self.lock = respond, [], threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/get_reward"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(request)
            number = len(self.server.requests)
        try:
            response = self.server.respond(request, number)
            status, body = response if isinstance(response, tuple) else (200, json.dumps(response).encode())
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            for piece in [body] if isinstance(body, bytes) else body:
                self.wfile.write(piece)
        except OSError:
            self.close_connection = True  # the client disconnected

    def log_message(self, *words):
        """Do not log requests."""
