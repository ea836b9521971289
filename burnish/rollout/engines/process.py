"""ServerProcess: a server that we start, with a log; it ends when this process ends.

Only this user can reach it: it gets a random key, its folder has mode 700, and its process groups stay on the loopback
interface.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.network import prefer_loopback, socket_folder
from burnish.rollout.engine import EngineDied
from burnish.rollout.engines import parent_guard
from burnish.rollout.engines.environment import variables_for
from burnish.rollout.engines.private import KEY_VARIABLE, STORES

EXCEPTION = re.compile(r"\b\w+(Error|Exception): \S.*")
LOG_LINES = 30  # of the server's log in an error message


def server_folder(name: str) -> Path:
    return socket_folder(f"burnish-{name.lower()}-")


class ServerProcess:
    """`name`: of the system, for messages. `folder` is removed at the end. `module`: what Python runs, with its
    arguments; `python`: the interpreter of another environment."""

    def __init__(
        self,
        name: str,
        module: Sequence[str],
        url: str,
        environment: Mapping[str, str],
        folder: Path | None = None,
        python: str | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.api_key = secrets.token_hex(32)
        self.folder = server_folder(name) if folder is None else folder
        self._log = (self.folder / "server.log").open("wb")
        variables = {**environment, KEY_VARIABLE: self.api_key, STORES: str(self.folder)}
        variables = variables_for(python, self.folder, variables)
        prefer_loopback(variables)
        self.process = subprocess.Popen(
            [sys.executable, parent_guard.__file__, python or sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=variables,
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

    def first_error(self) -> str | None:
        """The first exception in its log: what fails later is usually a consequence. Lines have prefixes."""
        text = (self.folder / "server.log").read_text(errors="replace")
        found = EXCEPTION.search(text)
        return None if found is None else found.group().strip()

    def close(self) -> None:
        """Kill its process group and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def server_key(process: ServerProcess | None) -> str | None:
    """The key of the server that we started, or of a running one."""
    return os.environ.get(KEY_VARIABLE) if process is None else process.api_key
