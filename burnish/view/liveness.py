"""Whether a run is alive, and what ended it, by the files in its folder."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.log.file import METRICS
from burnish.log.folder import FAILURE, HOLDER, lock_state
from burnish.log.timeline import NAME as TIMELINE
from burnish.untrusted import read_json_object, read_text

RUNNING, FINISHED_STATE, STOPPED, CRASHED, HUNG = "running", "finished", "stopped", "crashed", "hung"
KILLED = "the process was killed"
RECENT = 600.0  # seconds; a run on another machine is taken to be running if it wrote that recently
MAX_HANG_REPORT = 64 * 2**20
MAX_PROBLEM = 500  # characters
_REPORT = re.compile(r"^\d{4}-\d\d-\d\d.*", re.MULTILINE)  # the first line of a report; stacks follow


def run_state(folder: Path, updated: float | None, *, is_finished: bool) -> tuple[str, str]:
    """(state, problem). A killed process leaves its lock's description, one that failed leaves the error."""
    if is_alive(folder, updated):
        return RUNNING, ""
    if is_finished:
        return FINISHED_STATE, ""
    hang = hang_report(folder)
    if hang is not None:
        return HUNG, hang
    failure = _object(folder / FAILURE)
    if failure:
        return CRASHED, str(failure.get("error"))[:MAX_PROBLEM]
    if (folder / HOLDER).exists():
        return CRASHED, KILLED
    return STOPPED, ""


def is_alive(folder: Path, updated: float | None) -> bool:
    """Whether a process trains in the folder.

    The lock decides. Where there is none, the process that its description names does; of one on another machine only
    `updated`, the time of the last sign of life, is known.
    """
    locked = lock_state(folder)
    if locked:
        return True
    holder = _object(folder / HOLDER)
    pid, host = holder.get("pid"), holder.get("host")
    if not isinstance(host, str):
        return False
    if host != socket.gethostname():
        return updated is not None and time.time() - updated < RECENT
    return locked is None and type(pid) is int and pid > 0 and _exists(pid)


def hang_report(folder: Path) -> str | None:
    """The first line of the newest report of a hang; None if there is none, or the run went on after it."""
    reports = [(time, path) for path in folder.glob("hang_rank_*.txt") if (time := _time(path)) is not None]
    if not reports:
        return None
    written, path = max(reports)
    # A start writes the command, a step the metrics and the timeline.
    if any(
        (time := _time(folder / name)) is not None and time > written for name in (METRICS, TIMELINE, "command.txt")
    ):
        return None
    try:
        found = _REPORT.findall(read_text(path, limit=MAX_HANG_REPORT))
    except (OSError, UserError):
        return None
    return found[-1][:MAX_PROBLEM] if found else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _time(path: Path) -> float | None:
    return path.stat().st_mtime if path.is_file() and not path.is_symlink() else None


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, limit=1 << 20)
    except (OSError, UserError):
        return {}
