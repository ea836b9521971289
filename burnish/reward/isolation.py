"""Run a reward worker in its own namespaces: it cannot see other processes, and its children die with it.

    the run  ->  launcher  ->  watcher (init process of a new pid namespace)  ->  worker

The worker cannot signal processes outside its pid namespace. When the launcher is killed or the run exits, the watcher
exits; it is the init process of the namespace, so the kernel then kills all other processes in it.
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
from burnish.reward.sandbox.result import MEMORY, PROCESSES
from burnish.reward.sandbox.watch import watch

_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC
_MAX_PROCESSES = 512  # limit for a worker's namespace; threads count
_FILE_CAPABILITIES = 0b11111  # CAP_CHOWN ... CAP_FSETID: root keeps its access to other users' files
_NUM_CAPABILITIES = 64
_PR_CAPBSET_DROP, _CAPABILITY_VERSION = 24, 0x20080522
_MOUNT_SETATTR, _CURRENT_FOLDER, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_SETUP_FAILED = 125
_MAX_DESCRIPTORS = 2**20
_PROBE_SECONDS = 20.0
_KILL_REASONS = {
    MEMORY: "its processes together used more than reward.memory_mb",
    PROCESSES: f"it had more than {_MAX_PROCESSES} processes",
}


@dataclass(frozen=True)
class WorkerIsolation:
    """How to isolate a worker. `folder` is its temporary folder; with `read_only` it can write only there."""

    network: bool = True
    read_only: bool = False
    memory_mb: int = 0  # for all its processes together; 0 means no limit
    lifeline: int = -1  # read end of a pipe without data: when the parent closes the other end, everything is killed
    folder: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def run_isolated(text: str, body: Callable[[], None]) -> NoReturn:
    """Run `body` with this isolation, in a new interpreter that does nothing else, and exit as it exits."""
    options = WorkerIsolation(**json.loads(text))
    os.set_inheritable(options.lifeline, False)
    try:
        capabilities = _enter_namespaces(options)
        result_reader, result_writer = os.pipe()
        watcher = os.fork()
        if watcher == 0:
            os.close(result_reader)
            _watch_worker(options, capabilities, body, result_writer)
        _close_all_except(result_reader)
        with os.fdopen(result_reader) as file:
            result = json.loads(file.read() or '{"problem": "the watcher was killed"}')
        os.waitpid(watcher, 0)
    except OSError as error:
        result = {"problem": str(error)}
    _exit_like(result)


def _enter_namespaces(options: WorkerIsolation) -> int:
    """Enter new namespaces; return the capabilities that the worker keeps.

    Root does not need a user namespace and keeps its access to files; other users need one.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _NAMESPACES | (0 if options.network else linux.CLONE_NEWNET)
    if uid == 0:
        # Root in a container may lack CAP_SYS_ADMIN but still be able to create a user namespace.
        with contextlib.suppress(OSError):
            linux.unshare(flags)
            return _FILE_CAPABILITIES
    linux.unshare(flags | linux.CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    return 0


def _watch_worker(
    options: WorkerIsolation, capabilities: int, body: Callable[[], None], result_writer: int
) -> NoReturn:
    """The watcher: set up mounts, start the worker, and wait for it."""
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        has_proc = _mount(options)
        pid = os.fork()
        if pid == 0:
            os.close(result_writer)
            os.setsid()  # signals to its process group reach only its own processes
            _drop_capabilities(capabilities)
            _run_worker(body)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # the worker cannot ptrace this process or read its /proc entries
        _close_all_except(options.lifeline, result_writer)
        limits = Limits(memory_mb=options.memory_mb or None, processes=_MAX_PROCESSES)
        result = watch(pid, options.lifeline, limits if has_proc else None)
    except BaseException as error:
        result = {"problem": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        os.write(result_writer, json.dumps(result).encode())
    os._exit(0)


def _close_all_except(*kept: int) -> None:
    """Close all other descriptors, above all the worker's pipe: the parent must see EOF when the worker closes it."""
    start = 3
    for descriptor in (*sorted(kept), _MAX_DESCRIPTORS):
        os.closerange(start, descriptor)
        start = descriptor + 1


def _mount(options: WorkerIsolation) -> bool:
    """Set up the mounts; return whether /proc could be mounted. Containers that mask parts of /proc do not allow it."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        has_proc = True
    except OSError:
        has_proc = False
    if options.read_only:
        make_read_only()
        size = f"size={options.memory_mb or 1024}m,mode=700"
        for folder in (options.folder, "/dev/shm"):
            if os.path.isdir(folder):
                linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    return has_proc


def make_read_only() -> None:
    """Make all current mounts read-only; later mounts are not affected. OSError before Linux 5.12."""
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", _READ_ONLY, 0, 0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(_CURRENT_FOLDER), b"/", ctypes.c_long(_RECURSIVE), attributes, ctypes.c_long(32))
    if libc.syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"making all files read-only: {os.strerror(number)}")


def _drop_capabilities(capabilities: int) -> None:
    for number in range(_NUM_CAPABILITIES):
        if not capabilities >> number & 1:
            with contextlib.suppress(OSError):  # older kernels have fewer capabilities
                linux.prctl(_PR_CAPBSET_DROP, number)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    sets = ctypes.create_string_buffer(struct.pack("IIIIII", capabilities, capabilities, 0, 0, 0, 0))
    ctypes.CDLL(None).capset(header, sets)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if os.getuid() != 0:  # not enforced for root outside; counted per user namespace since Linux 5.14
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_PROCESSES, _MAX_PROCESSES))


def _run_worker(body: Callable[[], None]) -> NoReturn:
    try:
        body()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _exit_like(result: dict[str, Any]) -> NoReturn:
    """Exit with the worker's exit status, or kill this process with the same signal."""
    if "problem" in result:
        sys.stderr.write(f"the worker could not be isolated: {result['problem']}\n")
        os._exit(_SETUP_FAILED)
    if result["killed"] in _KILL_REASONS:
        sys.stderr.write(f"{_KILL_REASONS[result['killed']]}\n")
    if result["status"] < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-result["status"], signal.SIG_DFL)
        os.kill(os.getpid(), -result["status"])
    os._exit(result["status"] & 0xFF)


@functools.cache
def isolation_problem(*, network: bool, read_only: bool) -> str | None:
    """Why this system cannot isolate a worker like this; None if it can. Tested once per process."""
    if not sys.platform.startswith("linux"):
        return f"no namespaces on {sys.platform}"
    lifeline, lifeline_writer = os.pipe()
    try:
        options = WorkerIsolation(network, read_only, lifeline=lifeline, folder="/proc")
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from burnish.reward.isolation import run_isolated;"
            f" import os; run_isolated({str(options)!r}, lambda: os.getpid() == 2 or sys.exit(3))"
        )
        probe = subprocess.run(
            [sys.executable, "-c", code], pass_fds=(lifeline,), capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    finally:
        os.close(lifeline)
        os.close(lifeline_writer)
    return None if probe.returncode == 0 else (probe.stderr.strip().splitlines() or [f"status {probe.returncode}"])[-1]
