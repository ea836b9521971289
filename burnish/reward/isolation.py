"""Namespaces around a reward worker: it sees no process but its own, and what it starts ends with it.

    the run  ->  launcher  ->  watcher (first process of a new pid namespace)  ->  worker

The worker cannot signal what it cannot see. When the launcher is killed or the run is gone, the watcher ends, and with
the first process of a pid namespace the kernel ends all others, whatever they did to stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from burnish.reward.sandbox import linux
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.ran import MEMORY, PROCESSES
from burnish.reward.sandbox.watch import watch

_SPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC
_PROCESSES = 512  # most of them at once in a worker's namespace; threads count
_FILE_CAPABILITIES = 0b11111  # what lets root read and write others' files; the rest goes
_NUM_CAPABILITIES = 64
_PR_CAPBSET_DROP, _CAPABILITY_VERSION = 24, 0x20080522
_MOUNT_SETATTR, _CURRENT_FOLDER, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_SETUP_FAILED = 125
_MOST_FILES = 2**20
_PROBE_SECONDS = 20.0
_KILLED = {
    MEMORY: "its processes together held more than reward.memory_mb",
    PROCESSES: f"it had more than {_PROCESSES} processes",
}


@dataclass(frozen=True)
class Borders:
    """What is around a worker. `folder` is its own; with `read_only` the only place where it can write."""

    network: bool = True
    read_only: bool = False
    memory_mb: int = 0  # of all its processes together; 0 sets no limit
    lifeline: int = -1  # a pipe that nobody writes to: when its other end closes, all is over
    folder: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def run_isolated(text: str, body: Callable[[], None]) -> NoReturn:
    """Run `body` behind these borders, in a fresh interpreter that does nothing else, and end as it ends."""
    borders = Borders(**json.loads(text))
    os.set_inheritable(borders.lifeline, False)
    try:
        capabilities = _enter(borders)
        said, saying = os.pipe()
        watcher = os.fork()
        if watcher == 0:
            os.close(said)
            _watch_over(borders, capabilities, body, saying)
        _close_all_but(said)
        with os.fdopen(said) as words:
            ended = json.loads(words.read() or '{"problem": "the watcher was killed"}')
        os.waitpid(watcher, 0)
    except OSError as error:
        ended = {"problem": str(error)}
    _end_like(ended)


def _enter(borders: Borders) -> int:
    """Into new namespaces; the capabilities that the worker keeps.

    Root makes them as it is, and keeps its access to files; others need a user namespace for it.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _SPACES | (0 if borders.network else linux.CLONE_NEWNET)
    if uid == 0:
        with contextlib.suppress(OSError):  # a container's root may lack the right, and still make a user namespace
            linux.unshare(flags)
            return _FILE_CAPABILITIES
    linux.unshare(flags | linux.CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    return 0


def _watch_over(borders: Borders, capabilities: int, body: Callable[[], None], saying: int) -> NoReturn:
    """The watcher: mounts, then the worker, then waiting for its end."""
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        has_proc = _mount(borders)
        pid = os.fork()
        if pid == 0:
            os.close(saying)
            os.setsid()  # a signal to its process group reaches its own processes only
            _give_up_rights(capabilities)
            _work(body)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # the worker may not look into this process
        _close_all_but(borders.lifeline, saying)
        limits = Limits(memory_mb=borders.memory_mb or None, processes=_PROCESSES)
        ended = watch(pid, borders.lifeline, limits if has_proc else None)
    except BaseException as error:
        ended = {"problem": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        os.write(saying, json.dumps(ended).encode())
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    """Above all the worker's pipe: its end must be seen when the worker closes it."""
    start = 3
    for descriptor in (*sorted(kept), _MOST_FILES):
        os.closerange(start, descriptor)
        start = descriptor + 1


def _mount(borders: Borders) -> bool:
    """Is there a /proc of the new pid namespace? A container that hides parts of its own allows no other."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        has_proc = True
    except OSError:
        has_proc = False
    if borders.read_only:
        make_read_only()
        size = f"size={borders.memory_mb or 1024}m,mode=700"
        for folder in (borders.folder, "/dev/shm"):
            if os.path.isdir(folder):
                linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    return has_proc


def make_read_only() -> None:
    """Everything that is mounted, and nothing that will be. OSError before Linux 5.12."""
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", _READ_ONLY, 0, 0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(_CURRENT_FOLDER), b"/", ctypes.c_long(_RECURSIVE), attributes, ctypes.c_long(32))
    if libc.syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"making all files read-only: {os.strerror(number)}")


def _give_up_rights(capabilities: int) -> None:
    for number in range(_NUM_CAPABILITIES):
        if not capabilities >> number & 1:
            with contextlib.suppress(OSError):  # this kernel knows fewer
                linux.prctl(_PR_CAPBSET_DROP, number)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    sets = ctypes.create_string_buffer(struct.pack("IIIIII", capabilities, capabilities, 0, 0, 0, 0))
    ctypes.CDLL(None).capset(header, sets)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if os.getuid() != 0:  # it binds nobody who is root outside, and is counted per user namespace since Linux 5.14
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))


def _work(body: Callable[[], None]) -> NoReturn:
    try:
        body()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _end_like(ended: dict[str, Any]) -> NoReturn:
    """Exit with the worker's status, or die of its signal."""
    if "problem" in ended:
        sys.stderr.write(f"the worker could not be isolated: {ended['problem']}\n")
        os._exit(_SETUP_FAILED)
    if ended["killed"] in _KILLED:
        sys.stderr.write(f"{_KILLED[ended['killed']]}\n")
    if ended["status"] < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-ended["status"], signal.SIG_DFL)
        os.kill(os.getpid(), -ended["status"])
    os._exit(ended["status"] & 0xFF)


@functools.cache
def problem_with(*, network: bool, read_only: bool) -> str | None:
    """Why a worker cannot be isolated like this on this system; None where it can. Tried once."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no namespaces"
    lifeline, ours = os.pipe()
    try:
        borders = Borders(network, read_only, lifeline=lifeline, folder="/proc")
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from burnish.reward.isolation import run_isolated;"
            f" import os; run_isolated({str(borders)!r}, lambda: os.getpid() == 2 or sys.exit(3))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], pass_fds=(lifeline,), capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    finally:
        os.close(lifeline)
        os.close(ours)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
