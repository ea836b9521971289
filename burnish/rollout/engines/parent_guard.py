"""Run a command that ends when its parent does, even if the parent is killed: `python parent_guard.py command ...`.

It leads a process group of its own. Its standard input is a pipe whose other end the parent holds; when that closes,
the whole group is killed. The command's exit status is passed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    os.umask(os.umask(0o022) | 0o022)  # other users must not connect to sockets that the command creates
    threading.Thread(target=_kill_group_with_parent, daemon=True).start()
    return subprocess.call(command, stdin=subprocess.DEVNULL)


def _kill_group_with_parent() -> None:
    while os.read(0, 1024):
        continue
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
