"""Run a program without namespaces: with limits, an empty environment, and a seccomp filter where available."""

from __future__ import annotations

import os
import select
import signal
import sys

from burnish.isolation import linux
from burnish.isolation.plan import PARENT_EXITED, Plan
from burnish.isolation.program import filters_calls, start_program, write_files
from burnish.isolation.watch import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_MS = 50
_POLL_WITHOUT_PIDFD_MS = 5  # nothing announces the end of a child


def run_weak(plan: Plan) -> dict[str, Any]:
    """Start the program and watch it from its parent."""
    write_files(plan)
    proc, usage = -1, None
    if sys.platform.startswith("linux"):
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # this process adopts orphans, so that it finds and kills them
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        try:
            usage = Usage(proc, plan.limits, root=os.getpid(), shared=not filters_calls(plan))
        except FileNotFoundError:  # this kernel does not list the children of a process
            usage = None
    program = start_program(plan, proc)
    poll = select.poll()
    poll.register(plan.lifeline, select.POLLIN)
    interval = _POLL_MS if _notify_of_end(poll, program) else _POLL_WITHOUT_PIDFD_MS
    killed, status = None, None
    while killed is None and status is None:
        events = [descriptor for descriptor, _ in poll.poll(interval)]
        if plan.lifeline in events:
            killed = PARENT_EXITED
        elif not events and usage is not None:
            killed = usage.exceeded()
        status = _reap(program)
    _kill_all(usage, None if status is not None else program)
    used = os.times()
    status = -signal.SIGKILL if status is None or killed is not None else status
    return {"status": int(status), "killed": killed, "cpu": used.children_user + used.children_system}


def _notify_of_end(poll: select.poll, pid: int) -> bool:
    """Let the poll wake up when the process ends; False if the system cannot."""
    try:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    except (AttributeError, OSError):
        return False
    return True


def _reap(pid: int) -> int | None:
    """Reap all exited children, including adopted ones; return the status of `pid` if it is among them."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if child == 0:
            return None
        if child == pid:
            return os.waitstatus_to_exitcode(status)


def _kill_all(usage: Usage | None, program: int | None) -> None:
    """Kill the program, unless it has ended, and all processes that it started, as far as the system shows them."""
    pids = [] if program is None else [program]
    while True:
        pids += [] if usage is None else [int(pid) for pid in usage.pids()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not pids:
            return
        select.select([], [], [], 0.001)
        _reap(0)
        pids = []
