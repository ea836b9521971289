"""A command that ends with whoever started it, even if that one is killed: `python leash.py command ...`.

It is the first process of a group of its own. Its standard input is a pipe whose other end the starter holds; when that
closes, for whatever reason, the whole group is killed. The command's exit status is handed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    return subprocess.call(command, stdin=subprocess.DEVNULL)


def _end_with_the_starter() -> None:
    while os.read(0, 1024):
        continue
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
