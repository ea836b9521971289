"""Cgroup: a control group (version 2) for one isolated process, where this user may create them.

It counts all memory, also that of the kernel on behalf of the processes: buffers of sockets and pipes, page tables.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PREFIX = "burnish-"
_SELF, _MOUNTS = "/proc/self/cgroup", "/proc/self/mountinfo"


class Cgroup:
    """A new group below `parent`, with the memory and processes of `limits` (fields of `Limits`)."""

    LIMIT = "memory"

    def __init__(self, parent: str, limits: Mapping[str, Any]) -> None:
        self._parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        self.name = f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        os.mkdir(self.name, dir_fd=self._parent)
        self._folder = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._parent)
        if limits["memory_mb"] is not None:
            self._write("memory.max", str(limits["memory_mb"] * 2**20))
            self._write("memory.oom.group", "1")  # all processes or none
            if self._has("memory.swap.max"):  # not without swap
                self._write("memory.swap.max", "0")
        if limits["processes"] is not None and self._has("pids.max"):
            self._write("pids.max", str(limits["processes"] + 1))  # and the init process
        self._processes = os.open("cgroup.procs", os.O_WRONLY, dir_fd=self._folder)

    def join(self) -> None:
        """Move this process into the group."""
        os.write(self._processes, b"0")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed processes of the group because of its limit."""
        events = dict(line.split() for line in self._read("memory.events").splitlines())
        return int(events.get("oom_kill", 0)) > 0

    def remove(self) -> None:
        """Kill what is left in the group, and remove it."""
        if self._has("cgroup.kill"):  # since Linux 5.14; the pid namespace has ended everything anyway
            self._write("cgroup.kill", "1")
        try:
            os.rmdir(self.name, dir_fd=self._parent)
        except OSError:  # a process is still exiting; an empty group costs little, and the next run removes it
            return

    def _has(self, name: str) -> bool:
        return os.access(name, os.F_OK, dir_fd=self._folder)

    def _read(self, name: str) -> str:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=self._folder)
        try:
            return os.read(descriptor, 4096).decode()
        finally:
            os.close(descriptor)

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(name, os.O_WRONLY, dir_fd=self._folder)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def find_parent() -> str | None:
    """The nearest group above this process in which this user may create groups with a limit of memory."""
    if not os.path.exists(_SELF):
        return None
    group = _own_group()
    if group is None:
        return None
    mount_point, path = group
    while True:
        folder = os.path.normpath(mount_point + path)
        if _delegates(folder):
            return folder
        if path in ("", "/"):
            return None
        path = os.path.dirname(path)


def _own_group() -> tuple[str, str] | None:
    """Where control groups of version 2 are mounted, and this process's group below it."""
    try:
        with open(_SELF) as file:
            path = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
        with open(_MOUNTS) as file:
            fields = [line.split() for line in file]
    except OSError:
        return None
    mounts = [(line[4], line[3]) for line in fields if line[line.index("-") + 1] == "cgroup2"]
    if path is None or not mounts:
        return None
    mount_point, root = mounts[0]
    return mount_point, "/" + os.path.relpath(path, root) if path.startswith(root) else path


def _delegates(folder: str) -> bool:
    try:
        with open(f"{folder}/cgroup.subtree_control") as file:
            controllers = file.read().split()
    except OSError:
        return False
    return "memory" in controllers and all(os.access(path, os.W_OK) for path in (folder, f"{folder}/cgroup.procs"))


def remove_stale(parent: str) -> None:
    """Remove empty groups that killed runs left behind."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            try:
                os.rmdir(os.path.join(parent, name))
            except OSError:  # in use
                continue
