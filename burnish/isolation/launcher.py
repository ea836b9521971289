"""Launcher of an isolated process: enters the namespaces, starts the program and watches it.

It runs in a new interpreter, because the calls below affect the whole process and a training process has threads.

    launcher (outside)  ->  init process of the new pid namespace  ->  program (no privileges)

The launcher watches from outside the pid namespace, where the program can neither see nor signal it. The init process
only reaps; when it exits, the kernel kills all other processes of the namespace. It exits with the program, and dies
with the launcher. Before the program has started, a failure is a problem of the sandbox; from then on it is the
program's, whatever it does to the init process.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys

from burnish.isolation import bubblewrap, linux, rootfs, seccomp
from burnish.isolation.cgroup import Cgroup
from burnish.isolation.plan import (
    BUBBLEWRAP,
    HOST,
    MINIMAL,
    PARENT_EXITED,
    READ_ONLY_HOST,
    ROOT,
    SETUP_FAILED,
    USER,
    WEAK,
    Plan,
    describe,
    send,
    to_json,
)
from burnish.isolation.program import become_unprivileged, filters_calls, start_program, write_files
from burnish.isolation.watch import Usage
from burnish.isolation.weak import run_weak

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_INSIDE_ID = 1000  # user and group id of a program in the new user namespace
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_POLL_MS = 50
_DEFAULT_SOCKET_BYTES = 212992


def main(values: dict[str, Any], modules: Any) -> NoReturn:
    """Start the program, wait for it, and exit as it exits. `modules` are the code of this and what it imports."""
    plan = Plan(**values)
    for descriptor in (plan.lifeline, plan.report, *(plan.inner or ())):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    if plan.inner is not None:
        _run_init(plan, *plan.inner)
    try:
        result = run_weak(plan) if plan.mode == WEAK else _run_isolated(plan, modules)
    except BaseException as error:
        result = {"problem": describe(error)}
    if plan.report is not None:
        send(plan.report, to_json(result))
    _exit_like(result)


def _exit_like(result: dict[str, Any]) -> NoReturn:
    """Exit with the program's exit status, or kill this process with the same signal."""
    if "problem" in result:
        send(2, f"sandbox: {result['problem']}\n")
        os._exit(SETUP_FAILED)
    if result["status"] < 0:
        number = -result["status"]
        if number != signal.SIGKILL:  # which has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(result["status"] & 0xFF)


def _run_isolated(plan: Plan, modules: Any) -> dict[str, Any]:
    """Enter new namespaces, start their init process, and watch."""
    group = None if plan.cgroup is None else Cgroup(plan.cgroup, plan.limits)
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # now, because the root will change for this process too
    socket_bytes = 2 * _read_number(host_proc, "sys/net/core/wmem_max", _DEFAULT_SOCKET_BYTES)
    if plan.mode != ROOT and plan.view == MINIMAL:
        become_unprivileged(plan)  # root without CAP_SYS_ADMIN has to make namespaces as one who is not root
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # to write the id maps
    messages, message_writer = os.pipe()
    go_reader, go = os.pipe()
    start = _start_bubblewrap if plan.mode == BUBBLEWRAP else _start_init
    child, init = start(plan, (message_writer, go_reader, host_proc), (messages, go), group, modules)
    for descriptor in (message_writer, go_reader, *plan.pass_fds):
        os.close(descriptor)

    def open_usage(ready: list[str]) -> Usage:
        """Called when the init process has built the root."""
        if plan.mode == ROOT and plan.view == MINIMAL:
            _write_maps(host_proc, str(init), (_INSIDE_ID, _INSIDE_ID), (plan.uid, plan.uid))
        has_proc, *in_memory = ready
        root = f"/proc/{init}/root" if plan.mode == BUBBLEWRAP else ""  # which this process does not share
        usage = Usage(
            *(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY) if has_proc == "proc" else host_proc, plan.limits),
            root=None if has_proc == "proc" else init,
            in_memory=[root + path for path in in_memory],
            sockets=None if plan.network else _open(host_proc, f"{init}/net/sockstat"),
            socket_bytes=socket_bytes,
            shared=not filters_calls(plan),
        )
        send(go, "go")
        return usage

    try:
        return _watch(plan, (child, init), messages, open_usage, group)
    finally:
        if group is not None:
            group.remove()


def _start_init(
    plan: Plan, inner: tuple[int, int, int], outer: tuple[int, int], group: Cgroup | None, modules: Any
) -> tuple[int, int]:
    """Enter new namespaces and fork their init process, which has the descriptors `inner` but not `outer`."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _NAMESPACES | (0 if plan.network else linux.CLONE_NEWNET)
    linux.unshare(flags | (linux.CLONE_NEWUSER if plan.mode == USER else 0))
    if plan.mode == USER:
        inside = (_INSIDE_ID, _INSIDE_ID) if plan.view == MINIMAL else (uid, gid)
        _write_maps(inner[2], "self", inside, (uid, gid))
    if plan.view != HOST:
        rootfs.forbid_ipc(inner[2])
    init = os.fork()
    if init == 0:
        for descriptor in outer:
            os.close(descriptor)
        if group is not None:
            group.join()
        _run_init(plan, *inner)
    return init, init


def _start_bubblewrap(
    plan: Plan, inner: tuple[int, int, int], outer: tuple[int, int], group: Cgroup | None, modules: Any
) -> tuple[int, int]:
    """Start bubblewrap; its process id, and that of the init process in it."""
    info, info_writer = os.pipe()
    child = os.fork()
    if child == 0:
        if group is not None:
            group.join()
        plan.inner = inner
        file = os.memfd_create("plan")
        os.write(file, marshal.dumps((modules, vars(plan))))
        os.lseek(file, 0, os.SEEK_SET)
        for descriptor in (info_writer, file, *inner):
            os.set_inheritable(descriptor, True)
        start = [*sys.orig_argv[:-1], str(file)]
        os.execv(plan.bubblewrap or "", bubblewrap.command(plan, info_writer, start))
    os.close(info_writer)
    return child, bubblewrap.read_process_id(info)


def _watch(
    plan: Plan, processes: tuple[int, int], messages: int, open_usage: Any, group: Cgroup | None
) -> dict[str, Any]:
    """Read the init process's messages until it exits; kill it if a limit is exceeded or the parent exits.

    `processes` are the child to wait for, and the init process; with bubblewrap they are two.
    """
    child, init = processes
    poll = select.poll()
    poll.register(messages, select.POLLIN)
    poll.register(plan.lifeline, select.POLLIN)
    usage: Usage | None = None
    is_started, status, problem, killed = False, None, None, None
    text = b""
    while killed is None:
        events = [descriptor for descriptor, _ in poll.poll(_POLL_MS)]
        if plan.lifeline in events:
            killed = PARENT_EXITED
        elif messages in events:
            data = os.read(messages, 65536)
            if not data:
                break
            *lines, text = (text + data).split(b"\n")
            for kind, _, rest in (line.decode("utf-8", "replace").partition(" ") for line in lines):
                if kind == "ready":
                    usage = open_usage(rest.split("\t"))
                elif kind == "started":
                    is_started = True
                elif kind == "status":
                    status = int(rest)
                else:
                    problem = rest
        elif is_started and usage is not None:
            killed = usage.exceeded()
    if killed is not None:
        os.kill(init, signal.SIGKILL)
    _, code, used = os.wait4(child, 0)  # returns when all processes of the namespace have ended
    if problem is None and killed is None:
        problem = f"the init process ended ({os.waitstatus_to_exitcode(code)})"
    if problem is not None and not is_started:
        return {"problem": problem}
    if group is not None and group.ran_out_of_memory():
        killed = Cgroup.LIMIT
    status = -signal.SIGKILL if status is None or killed is not None else status
    counted = "sum" if group is None else "cgroup"
    return {"status": int(status), "killed": killed, "cpu": used.ru_utime + used.ru_stime, "counted": counted}


def _run_init(plan: Plan, messages: int, go: int, host_proc: int) -> NoReturn:
    """Init process of the new pid namespace: build the root, drop privileges, start the program and wait for it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel drops signals to init that have no handler
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        root = _build_root(plan)
        if plan.mode == ROOT and plan.view == MINIMAL:
            os.setgroups([])
            linux.unshare(linux.CLONE_NEWUSER)
        send(messages, "\t".join(["ready " + ("proc" if root.has_proc else "host"), *root.in_memory]) + "\n")
        if not os.read(go, 2):
            raise OSError("the launcher exited")
        if plan.mode == ROOT and plan.view == MINIMAL:
            os.setresgid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
            os.setresuid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel forgets it when ids change
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # the program cannot trace this process or read its /proc entries
        program = start_program(plan, host_proc)
        send(messages, "started\n")
        child = status = 0
        while child != program:  # orphans are this process's children too
            child, status = os.waitpid(-1, 0)
        send(messages, f"status {os.waitstatus_to_exitcode(status)}\n")
    except BaseException as error:
        send(messages, f"problem {describe(error)}\n")
    os._exit(0)


def _build_root(plan: Plan) -> rootfs.Root:
    if plan.mode == BUBBLEWRAP:  # has built it
        write_files(plan)
        return rootfs.Root(has_proc=False, in_memory=[rootfs.BOX, "/dev/shm"])
    if plan.view == HOST:
        return rootfs.use_host_root()
    if plan.view == READ_ONLY_HOST:
        if not seccomp.has_filter():
            raise OSError(f"there is no seccomp filter for {os.uname().machine}")
        return rootfs.use_read_only_host_root(plan.env["TMPDIR"], plan.limits["file_mb"] or 64)
    mask = os.umask(0 if plan.throwaway else 0o022)  # the program may write to folders created here
    root = rootfs.build_root(plan.readable, plan.writable, plan.limits["file_mb"] or 64, plan.throwaway)
    write_files(plan)
    os.umask(mask)
    return root


def _write_maps(proc: int, pid: str, inside: tuple[int, int], outside: tuple[int | None, int | None]) -> None:
    """Map one id inside to one outside. Only root may map an id other than its own, or keep setgroups."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside[0]} {outside[0]} 1"),
        ("gid_map", f"{inside[1]} {outside[1]} 1"),
    ):
        descriptor = os.open(f"{pid}/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _read_number(proc: int, name: str, default: int) -> int:
    descriptor = _open(proc, name)
    if descriptor is None:
        return default
    text = os.read(descriptor, 64)
    os.close(descriptor)
    return int(text)


def _open(proc: int, name: str) -> int | None:
    try:
        return os.open(name, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return None
