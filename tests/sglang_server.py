"""The stand-in for SGLang's server as a process: where it is, how it is started and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

STANDINS = str(Path(__file__).parent / "standins")
ROOT = str(Path(__file__).parents[1])
PATIENCE = 60.0


def python_path() -> str:
    """What finds the stand-in, and Burnish, in another process."""
    return os.pathsep.join([STANDINS, ROOT, os.environ.get("PYTHONPATH", "")])


class SglangServer:
    """One that runs already, as a user might have started it."""

    def __init__(self, folder: str, *flags: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        place = ["--model-path", folder, "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *place, *flags],
            env=os.environ | {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"},
        )

    def wait(self) -> SglangServer:
        end = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).close()
                return self
            except OSError:
                assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)

    def slow_down(self, seconds: float = 0.05) -> None:
        """Every step takes so long, until the next abort."""
        self._post("standin_pace", {"seconds": seconds})

    def wait_for_steps(self, count: int) -> None:
        """Return after so many steps since `slow_down`."""
        end = time.monotonic() + PATIENCE
        while self._post("standin_steps", {}) < count:
            assert time.monotonic() < end, "the server generates nothing"
            time.sleep(0.01)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
