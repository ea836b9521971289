"""Usage: the processes of a sandbox and the memory they hold together, measured from outside.

rlimits are not enough, because they limit each process by itself; control groups count everything, but many containers
have none.
"""

from __future__ import annotations

import os

MEMORY, PROCESSES = "memory", "processes"  # as in limits.py, which is slow to import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_KB, _MB = 2**10, 2**20


class Usage:
    """`proc` is an open /proc of the sandbox's pid namespace, or, with `root`, any /proc that shows the process `root`.

    Counted are private memory, swap and page tables of all processes; files in the folders `in_memory`; `socket_bytes`
    for every socket, if `sockets` is an open /proc/net/sockstat of its network namespace; and `shared` pages where no
    seccomp filter forbids processes to hold them elsewhere.
    """

    def __init__(
        self,
        proc: int,
        limits: Mapping[str, Any],
        *,
        root: int | None = None,
        in_memory: Iterable[str] = (),
        sockets: int | None = None,
        socket_bytes: int = 0,
        shared: bool = False,
    ) -> None:
        self._proc = proc
        self._root = root
        if root is not None:
            os.stat(f"{root}/task/{root}/children", dir_fd=proc)  # FileNotFoundError: not in this kernel
        self._max_processes = limits["processes"]
        self._max_bytes = None if limits["memory_mb"] is None else limits["memory_mb"] * _MB
        # Opened now: the program cannot use up the descriptors that are needed to look at it.
        self._folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in in_memory]
        self._sockets = sockets
        self._socket_bytes = socket_bytes
        self._fields = (b"RssAnon:", b"VmSwap:", b"VmPTE:", *((b"RssShmem:",) if shared else ()))
        self._exact_fields = (b"Pss_Anon:", b"SwapPss:", *((b"Pss_Shmem:",) if shared else ()))

    def exceeded(self) -> str | None:
        """The limit that all processes together exceed. One that cannot be measured counts as exceeded."""
        try:
            statuses = {pid: status for pid in self.pids() if (status := self._status(pid))}
            num_threads = sum(_sum(status, (b"Threads:",)) for status in statuses.values())
            if self._max_processes is not None and num_threads > self._max_processes:
                return PROCESSES
            if self._max_bytes is not None and self._memory(statuses) > self._max_bytes:
                return MEMORY
        except OSError:
            return MEMORY
        return None

    def _memory(self, statuses: Mapping[str, bytes]) -> int:
        outside = sum(map(_used_bytes, self._folders)) + self._num_sockets() * self._socket_bytes
        estimates = {pid: _sum(status, self._fields) * _KB for pid, status in statuses.items()}
        total = outside + sum(estimates.values())
        if self._max_bytes is None or total <= self._max_bytes:
            return total
        # The estimate counts pages that parent and child share twice; the exact value takes longer.
        return outside + sum(self._exact(pid, estimate) for pid, estimate in estimates.items())

    def _exact(self, pid: str, estimate: int) -> int:
        """Proportional memory of a process; the estimate if the kernel does not tell it."""
        try:
            report = self._read(f"{pid}/smaps_rollup")
        except PermissionError:  # of a process that forbids others to look at it
            return estimate
        return _sum(report, self._exact_fields) * _KB if b"Pss_Anon:" in report else estimate

    def pids(self) -> Iterator[str]:
        """The processes that are counted."""
        if self._root is None:
            yield from (name for name in os.listdir(self._proc) if name.isdigit() and name != "1")
            return
        waiting = [str(self._root)]
        while waiting:
            pid = waiting.pop()
            if pid != str(self._root):
                yield pid
            for thread in self._list(f"{pid}/task"):
                waiting += self._read(f"{pid}/task/{thread}/children").decode().split()

    def _status(self, pid: str) -> bytes:
        """/proc/PID/status. After its first thread has ended, only other threads of a process tell its memory."""
        status = self._read(f"{pid}/status")
        if b"VmPTE:" in status or b"Threads:\t1\n" in status or not status:
            return status
        for thread in self._list(f"{pid}/task"):
            other = self._read(f"{pid}/task/{thread}/status")
            if b"VmPTE:" in other:
                return other
        return status

    def _list(self, name: str) -> list[str]:
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except (FileNotFoundError, ProcessLookupError):
            return []
        try:
            return os.listdir(folder)
        finally:
            os.close(folder)

    def _read(self, name: str) -> bytes:
        """A file below /proc; empty if the process has ended."""
        try:
            descriptor = os.open(name, os.O_RDONLY, dir_fd=self._proc)
        except (FileNotFoundError, ProcessLookupError):
            return b""
        try:
            return os.read(descriptor, 2**16)
        except ProcessLookupError:
            return b""
        finally:
            os.close(descriptor)

    def _num_sockets(self) -> int:
        if self._sockets is None:
            return 0
        first = os.pread(self._sockets, 4096, 0).partition(b"\n")[0]  # "sockets: used 3"
        return int(first.split()[2])


def _used_bytes(folder: int) -> int:
    usage = os.fstatvfs(folder)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def _sum(report: bytes, fields: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) for line in report.splitlines() if line.startswith(fields))
