"""A server that we start: one process group, with a log, which ends with us."""

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
from burnish.rollout.engines import leash

LOG_LINES = 30  # of the server's log, in an error


class ServerProcess:
    """`name` is whose server it is, for people."""

    def __init__(self, name: str, command: Sequence[str], url: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.url = url
        self.folder = Path(tempfile.mkdtemp(prefix=f"burnish-{name.lower()}-"))
        self._log = (self.folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, leash.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise with the end of its log if it is gone."""
        code = self.process.poll()
        if code is not None:
            raise EngineDied(f"the {self.name} server ended with status {code}. The end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        text = (self.folder / "server.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def close(self) -> None:
        """End it and all that it started, and remove what it left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
