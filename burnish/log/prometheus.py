"""A /metrics endpoint in Prometheus's text format, and the configuration with which Prometheus finds it."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.log.console import say
from burnish.network import LOOPBACK

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HEADER = "# Written by Burnish; replaced when a run starts.\n"
ENGINE = "engine/"  # metrics of the rollout engine
RELOAD_TIMEOUT = 2.0  # seconds


class MetricsEndpoint:
    """A logger that serves the newest value of every metric. It listens on loopback unless asked otherwise."""

    def __init__(self, host: str, port: int, scrape: ScrapeConfig | None = None) -> None:
        """`port` 0 takes any that is free. `scrape`: tell a Prometheus server where the endpoint is."""
        self.host = host
        self.port = port
        self.scrape = scrape
        self.server: ThreadingHTTPServer | None = None
        self._labels: dict[str, str] = {}
        self._values: dict[str, float] = {}
        self._lock = threading.Lock()

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self._labels = {"project": run.project, "run": run.name}
        try:
            self.server = _Server((self.host, self.port), self._handler())
        except (OSError, OverflowError) as error:
            problem = f"cannot serve metrics on {self.host}: {error}"
            key = "trainer.metrics_port"
            raise UserError(problem, key=key, value=self.port, hint=f"{key}=0 for any free port") from error
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        serve = partial(self.server.serve_forever, poll_interval=0.05)  # seconds until it notices that it is closed
        threading.Thread(target=serve, name="burnish-metrics", daemon=True).start()
        say(f"metrics: http://{self.host}:{self.port}{PATH}")
        if self.scrape is not None:
            self.scrape.announce(f"{self.host}:{self.port}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._values |= {**metrics, "step": float(step)}

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Prometheus has no tables."""

    def note(self, text: str) -> None:
        """Nor notes."""

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def text(self) -> str:
        """What Prometheus reads. Of two metrics whose names it cannot tell apart, the first one."""
        with self._lock:
            values = dict(self._values)
        lines: dict[str, str] = {}
        for name, value in values.items():
            labels = dict(self._labels)
            if self.scrape is not None and name.startswith(ENGINE):
                labels["model_name"] = self.scrape.model_name
            written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            known = legal_name(name)
            lines.setdefault(known, f"# TYPE {known} gauge\n{known}{{{written}}} {_number(value)}\n")
        return "".join(lines.values())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a client to send its request

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != PATH:
                    self.send_error(404)
                    return
                body = endpoint.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Not on the console."""

        return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing for the console."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class ScrapeConfig:
    """rollout.prometheus: engine metrics carry the model's name, and a Prometheus server gets a configuration."""

    def __init__(self, file: Path, port: int, model_name: str) -> None:
        self.file = file
        self.port = port  # of the Prometheus server
        self.model_name = model_name

    def announce(self, target: str) -> None:
        """Write the configuration and let a running server read it."""
        key = "actor_rollout_ref.rollout.prometheus.file"
        if self.file.exists() and not self.file.read_text(encoding="utf-8", errors="replace").startswith(HEADER):
            hint = f"{key}=/another/file, or add the target {target} to it"
            raise UserError("the file exists and Burnish did not write it", key=key, value=str(self.file), hint=hint)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        job = f"  - job_name: burnish\n    static_configs:\n      - targets: ['{target}']\n"
        self.file.write_text(f"{HEADER}global:\n  scrape_interval: 10s\nscrape_configs:\n{job}", encoding="utf-8")
        if not self._reload():
            start = f"prometheus --config.file={self.file} --web.listen-address=127.0.0.1:{self.port}"
            say(f"no Prometheus on port {self.port} reloads its configuration; to start one: {start}")

    def _reload(self) -> bool:
        connection = HTTPConnection(LOOPBACK, self.port, timeout=RELOAD_TIMEOUT)
        try:
            connection.request("POST", "/-/reload")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def legal_name(name: str) -> str:
    """A name that Prometheus accepts."""
    return "burnish_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
