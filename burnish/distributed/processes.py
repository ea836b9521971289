"""Workers as local processes, started by the controller."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from burnish.sizing import available_cores

GRACE = 5.0  # seconds that the processes have to end before they are killed


class Processes:
    """One process per worker; the cores are divided among them.

    `wrap` may replace the command of a rank, for example to run it under a profiler.
    """

    def __init__(self, wrap: Callable[[int, list[str]], list[str]] = lambda rank, command: command) -> None:
        self._wrap = wrap
        self._running: dict[str, subprocess.Popen] = {}

    def start(self, names: Sequence[str], address: str) -> None:
        threads = max(1, available_cores() // len(names))
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        for rank, name in enumerate(names):
            command = [sys.executable, "-m", "burnish.distributed.host", address, str(rank)]
            # A session of its own: Ctrl-C goes to the controller only, which finishes its step first.
            self._running[name] = subprocess.Popen(self._wrap(rank, command), env=environment, start_new_session=True)

    def poll(self) -> None:
        """The processes have all they need."""

    def exit_reason(self, name: str) -> str | None:
        process = self._running.get(name)
        if process is None or process.poll() is None:
            return None
        return describe_exit(process.returncode)

    def node(self, name: str) -> str:
        return platform.node()

    def stop(self) -> None:
        deadline = time.monotonic() + GRACE
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()

    def pid(self, name: str) -> int:
        return self._running[name].pid


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"
