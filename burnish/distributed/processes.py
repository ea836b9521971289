"""Workers as local processes, started by the controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from burnish.distributed.host import SECRET

GRACE = 5.0  # seconds that the processes have to end before they are killed


class Processes:
    """One process per worker; the cores are divided among them."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen] = {}

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        threads = max(1, (os.cpu_count() or 1) // len(names))
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, SECRET: secret.hex()}
        for name in names:
            command = [sys.executable, "-m", "burnish.distributed.host", address[0], str(address[1]), name]
            # A session of its own: Ctrl-C goes to the controller only, which finishes its step first.
            self._running[name] = subprocess.Popen(command, env=environment, start_new_session=True)

    def exit_reason(self, name: str) -> str | None:
        process = self._running.get(name)
        if process is None or process.poll() is None:
            return None
        return describe_exit(process.returncode)

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
