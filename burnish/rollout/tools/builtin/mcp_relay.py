"""Runs an MCP server and passes its messages on, within bounds: `python mcp_relay.py command ...`.

A server's output is a line of JSON per message. The client library would collect a line without end in memory, so this
process ends the server that writes one, or that keeps writing without being asked. Other lines are dropped. When it
ends, it prints why, and the last that the server wrote to stderr.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import IO

MAX_LINE = 8 * 2**20
MAX_BYTES = 32 * 2**20  # between two requests
MAX_STDERR = 2000
STOP_SECONDS = 2.0


class Relay:
    """The server's process and its three streams."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.num_bytes = 0  # since the last request
        self.stderr: deque[bytes] = deque(maxlen=50)
        self.threads = [
            threading.Thread(target=function, daemon=True) for function in (self._copy_stdin, self._keep_stderr)
        ]

    def run(self) -> str:
        """Pass messages on until the server ends or breaks a bound; returns why."""
        for thread in self.threads:
            thread.start()
        stdout = self.process.stdout
        assert stdout is not None
        while line := stdout.readline(MAX_LINE + 1):
            self.num_bytes += len(line)
            if len(line) > MAX_LINE:
                return f"the server wrote a message of more than {MAX_LINE / 2**20:g} MiB"
            if self.num_bytes > MAX_BYTES:
                return f"the server wrote more than {MAX_BYTES / 2**20:g} MiB after one request"
            if line.lstrip()[:1] in (b"{", b"["):
                with contextlib.suppress(BrokenPipeError):  # the client has gone, and stdin has ended
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.threads[1].join(STOP_SECONDS)  # the rest of stderr
        status = self.process.returncode
        return "the server closed its output" if status is None else f"the server exited with status {status}"

    def _copy_stdin(self) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            while data := os.read(0, 2**16):
                self.num_bytes = 0
                stdin.write(data)
                stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()
        # The client has gone: the server should end now that its input has.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)

    def _keep_stderr(self) -> None:
        stderr: IO[bytes] | None = self.process.stderr
        assert stderr is not None
        while line := stderr.readline(MAX_STDERR):
            self.stderr.append(line)


def main(command: list[str]) -> int:
    # The client starts this process in a group of its own; if it did not, the kill below would reach others.
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    try:
        relay = Relay(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    reason = relay.run()
    printed = b"".join(relay.stderr)[-MAX_STDERR:].decode("utf-8", "replace").strip()
    sys.stderr.write(f"{reason}\n{printed}\n")
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        relay.process.kill()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
