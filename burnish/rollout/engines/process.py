"""ServerProcess: a server that we start, with a log; it ends when this process ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.rollout.engine import EngineDied
from burnish.rollout.engines import parent_guard

LOG_LINES = 30  # of the server's log in an error message


class ServerProcess:
    """`name`: of the system, for messages."""

    def __init__(self, name: str, command: Sequence[str], url: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.url = url
        self.folder = Path(tempfile.mkdtemp(prefix=f"burnish-{name.lower()}-"))
        self._log = (self.folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, parent_guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise EngineDied, with the end of its log, if it has exited."""
        code = self.process.poll()
        if code is not None:
            raise EngineDied(
                f"the {self.name} server exited with status {code}. Last lines of its log:\n{self.log_tail()}"
            )

    def log_tail(self) -> str:
        text = (self.folder / "server.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def close(self) -> None:
        """Kill its process group and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
