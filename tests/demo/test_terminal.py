"""The whole demo on a terminal: no line is wider than it, and nothing of the live display is left on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pyte
import pytest
from rich.cells import cell_len

COLUMNS = 60
# Three steps, and a warm-up that stops at once: what is printed counts, not what is learned.
PROGRAM = """
import sys
from pathlib import Path
from burnish.cli.demo import show
from burnish.demo import sorting
from burnish.demo.run import run_demo
from burnish.escape import escape_output
sorting.WARMUP_ACCURACY = 0.0
sorting.HELD_OUT = 8
escape_output()
show(run_demo(Path("runs"), 1, steps={steps}, shown=True))
"""


class Terminal:
    """A program on a pseudo-terminal, which it controls: Ctrl-C reaches it as from a keyboard."""

    def __init__(self, command: list[str], folder, columns: int = COLUMNS) -> None:
        self.controller, terminal = pty.openpty()
        self.resize(columns)
        variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        paths = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
        variables |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.output = b""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.controller, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.controller, keys)

    def read_until(self, text: bytes | None = None) -> str:
        """Until the output has this text, or to its end."""
        while text is None or text not in self.output:
            try:
                chunk = os.read(self.controller, 65536)
            except OSError:  # Linux: the other end is closed
                chunk = b""
            if not chunk:
                assert text is None, self.output.decode(errors="replace")
                os.close(self.controller)
                break
            self.output += chunk
        return self.output.decode(errors="replace")


def frames(text: str) -> list[str]:
    """Every line that was drawn, also those that were erased later."""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line]


@pytest.mark.long
def test_the_demo_fits_a_terminal_of_60_columns(tmp_path):
    terminal = Terminal([sys.executable, "-c", PROGRAM.format(steps=3)], tmp_path)
    lines = frames(terminal.read_until())
    assert terminal.process.wait() == 0, lines
    # A path stays whole: that of the environment may be longer than any terminal.
    assert [line for line in lines if cell_len(line) > COLUMNS and "/bin/activate" not in line] == []
    assert sum(line.startswith("step ") for line in lines) == 1  # the last one
    assert any(line.startswith("step 3/3  score") for line in lines)
    assert any("3/3" in line and "━" in line for line in lines)  # the live display
    assert any(line.startswith("validation at step 3") for line in lines)
    assert any("warm-up (SFT)" in line for line in lines)


@pytest.mark.long
def test_ctrl_c_and_a_resize_leave_a_clean_terminal(tmp_path):
    terminal = Terminal([sys.executable, "-c", PROGRAM.format(steps=5000)], tmp_path, columns=80)
    terminal.read_until(b"2/5000")
    terminal.resize(COLUMNS)
    terminal.read_until(b"6/5000")
    terminal.type(b"\x03")
    text = terminal.read_until()
    terminal.process.wait()
    screen = pyte.Screen(80, 200)
    pyte.Stream(screen).feed(text)
    lines = [line.rstrip() for line in screen.display if line.strip()]
    assert "Ctrl-C received: finishing this step, then saving." in lines
    assert sum(line.startswith("stopped after step") for line in lines) == 1
    assert sum("/5000" in line for line in lines) == 1  # the last step's line
    assert not any("──" in line or "^C" in line for line in lines)
    assert not screen.cursor.hidden
