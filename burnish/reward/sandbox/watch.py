"""Watch a process until it exits, exceeds its limits, or its parent goes away."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from typing import Any

from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.result import MEMORY, PROCESSES

_POLL_MS = 50
_POLL_WITHOUT_PIDFD_MS = 5  # without pidfd_open the kernel does not notify us of the exit


def watch(pid: int, lifeline: int, limits: Limits | None) -> dict[str, Any]:
    """Returns `status` (as in subprocess), `cpu` seconds, and `killed`: why this function killed the process, or None.

    With `limits`, the caller must be the init process of a pid namespace that has /proc: this function then limits the
    number of processes in the namespace and their memory.
    """
    poll = select.poll()
    poll.register(lifeline, select.POLLHUP)
    interval = _POLL_WITHOUT_PIDFD_MS
    with contextlib.suppress(AttributeError, OSError):
        poll.register(os.pidfd_open(pid), select.POLLIN)
        interval = _POLL_MS
    killed = None
    while (status := _reap(pid)) is None:
        events = dict(poll.poll(interval))
        if lifeline in events:
            killed = "parent exited"
        elif limits is not None and not events:
            killed = _exceeded_limit(limits)
        if killed is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"status": status, "killed": killed, "cpu": usage.ru_utime + usage.ru_stime}


def _exceeded_limit(limits: Limits) -> str | None:
    """The limit that all processes together exceed. rlimits alone are not enough: they limit memory per process."""
    if limits.processes is not None and len(_other_pids()) > limits.processes:
        return PROCESSES
    if limits.memory_mb is not None and memory_used(limits.memory_mb * 2**20) > limits.memory_mb * 2**20:
        return MEMORY
    return None


def _other_pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


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


def memory_used(threshold: int) -> int:
    """Bytes used by all processes of this pid namespace except init; exact only above `threshold`, where it matters."""
    estimate = _sum("status", (b"RssAnon:", b"RssShmem:"))  # counts pages shared by parent and child twice
    return estimate if estimate <= threshold else _sum("smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) or estimate


def _sum(name: str, fields: tuple[bytes, ...]) -> int:
    total = 0
    for pid in _other_pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith(fields))
    return total
