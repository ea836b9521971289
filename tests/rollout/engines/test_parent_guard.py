"""A command that ends with its starter."""

import os
import subprocess
import sys
import time

from burnish.rollout.engines import parent_guard

PATIENCE = 30.0


def test_the_command_ends_with_its_parent(tmp_path):
    """The starter is killed: what it started ends too."""
    mark = tmp_path / "pid"
    held = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    starter = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, {parent_guard.__file__!r}, sys.executable, '-c', {held!r}],"
        " stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    end = time.monotonic() + PATIENCE
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.wait()
    while os.path.exists(f"/proc/{mark.read_text()}/cmdline") and held_alive(mark.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not held_alive(mark.read_text())


def held_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(") ")[1][0] != "Z"
    except OSError:
        return False
