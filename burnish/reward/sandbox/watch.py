"""Watching a program: until it ends, uses too much memory with its children, or nobody waits for it any more."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from typing import Any

from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.ran import MEMORY, PROCESSES

_PAUSE_MS = 50
_PAUSE_BLIND_MS = 5  # where the kernel cannot tell us that a process ended


def watch(pid: int, lifeline: int, limits: Limits | None) -> dict[str, Any]:
    """`status` as subprocess has it, `cpu` seconds, and `killed` with the reason if it was ended from here.

    With `limits`, this is the first process of a pid namespace with a /proc, and counts the others and their memory.
    """
    poll = select.poll()
    poll.register(lifeline, select.POLLHUP)
    pause = _PAUSE_BLIND_MS
    with contextlib.suppress(AttributeError, OSError):
        poll.register(os.pidfd_open(pid), select.POLLIN)
        pause = _PAUSE_MS
    killed = None
    while (status := _reap(pid)) is None:
        events = dict(poll.poll(pause))
        if lifeline in events:
            killed = "nobody waits for it"
        elif limits is not None and not events:
            killed = _too_much(limits)
        if killed is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"status": status, "killed": killed, "cpu": usage.ru_utime + usage.ru_stime}


def _too_much(limits: Limits) -> str | None:
    """The kernel limits memory per process, and does not count the processes of every user."""
    if limits.processes is not None and len(_others()) > limits.processes:
        return PROCESSES
    if limits.memory_mb is not None and memory_used(limits.memory_mb * 2**20) > limits.memory_mb * 2**20:
        return MEMORY
    return None


def _others() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _reap(pid: int) -> int | None:
    """Collect every child that ended, adopted ones too; the status of `pid` once it is among them."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended == 0:
            return None
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def memory_used(enough: int) -> int:
    """Bytes that all processes of this pid namespace but the first hold; counted exactly once it may be `enough`."""
    quick = _sum("status", (b"RssAnon:", b"RssShmem:"))  # pages that a child shares with its parent count twice
    return quick if quick <= enough else _sum("smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) or quick


def _sum(name: str, fields: tuple[bytes, ...]) -> int:
    total = 0
    for pid in _others():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith(fields))
    return total
