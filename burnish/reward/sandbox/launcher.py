"""Launcher of a sandboxed program: enters the namespaces, starts the program and watches it.

It runs in a new interpreter, because the calls below affect the whole process and a training process has threads.

    launcher (outside)  ->  watcher (init process of the new pid namespace)  ->  program (no privileges)

When the launcher or its parent dies, the watcher exits; it is the init process of the pid namespace, so the kernel then
kills all other processes in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from burnish.reward.sandbox import linux, seccomp
from burnish.reward.sandbox.limits import Limits, apply_limits
from burnish.reward.sandbox.rootfs import build_root
from burnish.reward.sandbox.watch import watch

SETUP_FAILED = 125  # exit status when the program could not be started
ROOT, USER, WEAK = "root", "user", "weak"  # modes: namespaces created by root, by an ordinary user, or none
_INSIDE_ID = 1000  # user and group id in the new user namespace
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


@dataclass(frozen=True)
class Plan:
    """Instructions for the launcher, passed as JSON in an open file."""

    argv: list[str]
    mode: str
    env: dict[str, str]
    folder: str
    uid: int | None  # unprivileged id outside the namespace, if the launcher is root
    lifeline: int  # read end of a pipe without data: when the parent closes the other end, everything is killed
    report: int | None  # descriptor to write the result to
    files: dict[str, str] = field(default_factory=dict)  # name -> text, written to the folder before the program starts
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    network: bool = False
    filter_calls: bool = True
    throwaway: bool = False
    limits: Limits = field(default_factory=Limits)

    @staticmethod
    def read(descriptor: int) -> Plan:
        """Read the JSON and close the file."""
        with os.fdopen(descriptor) as file:
            values = json.load(file)
        return Plan(**values | {"limits": Limits(**values["limits"])})


def main(plan_file: int) -> NoReturn:
    """Start the program, wait for it, and exit as it exits."""
    plan = Plan.read(plan_file)
    for descriptor in (plan.lifeline, plan.report):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    try:
        result = _MODES[plan.mode](plan)
    except BaseException as error:
        result = {"problem": f"{type(error).__name__}: {error}"}
    if plan.report is not None:
        with contextlib.suppress(OSError):
            os.write(plan.report, json.dumps(result).encode())
    _exit_like(result)


def _exit_like(result: dict[str, Any]) -> NoReturn:
    """Exit with the program's exit status, or kill this process with the same signal."""
    if "problem" in result:
        sys.stderr.write(f"sandbox: {result['problem']}\n")
        sys.stderr.flush()
        os._exit(SETUP_FAILED)
    if result["status"] < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-result["status"], signal.SIG_DFL)
        os.kill(os.getpid(), -result["status"])
    os._exit(result["status"] & 0xFF)


def _run_isolated(plan: Plan) -> dict[str, Any]:
    """Enter new namespaces, start the watcher as their init process, and return its result."""
    is_root = plan.mode == ROOT
    flags = _NAMESPACES | (0 if plan.network else linux.CLONE_NEWNET) | (0 if is_root else linux.CLONE_NEWUSER)
    uid, gid = os.geteuid(), os.getegid()
    # Opened now, because the watcher changes the root for this process too.
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    linux.unshare(flags)
    if not is_root:
        _write_maps(proc, os.getpid(), uid, gid)
    result_reader, result_writer = os.pipe()
    request_reader, request_writer = os.pipe()  # the watcher requests its id maps
    ready_reader, ready_writer = os.pipe()  # the id maps are written
    pid = os.fork()
    if pid == 0:
        for descriptor in (result_reader, request_reader, ready_writer):
            os.close(descriptor)
        _run_watcher(plan, result_writer, request_writer, ready_reader)
    for descriptor in (result_writer, request_writer, ready_reader):
        os.close(descriptor)
    if is_root and os.read(request_reader, 1):
        _write_maps(proc, pid, plan.uid, plan.uid)
        os.write(ready_writer, b"1")
    with os.fdopen(result_reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"problem": "the sandbox exited without a result"}


def _write_maps(proc: int, pid: int, uid: int | None, gid: int | None) -> None:
    """Map one id inside to one outside. Only root may map an id other than its own, or keep setgroups."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_INSIDE_ID} {uid} 1"),
        ("gid_map", f"{_INSIDE_ID} {gid} 1"),
    ):
        descriptor = os.open(f"{pid}/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _run_watcher(plan: Plan, result_writer: int, request_writer: int, ready_reader: int) -> NoReturn:
    """Init process of the new pid namespace: build the root, drop privileges, start and watch the program."""
    try:
        mask = os.umask(0 if plan.throwaway else 0o022)  # the program may write to folders created here
        has_proc = build_root(plan.readable, plan.writable, plan.limits.file_mb or 64, plan.throwaway)
        _write_files(plan)
        os.umask(mask)
        if plan.mode == ROOT:
            os.setgroups([])
            linux.unshare(linux.CLONE_NEWUSER)
            os.write(request_writer, b"1")
            if not os.read(ready_reader, 1):
                raise OSError("no id maps")
            os.setresgid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
            os.setresuid(_INSIDE_ID, _INSIDE_ID, _INSIDE_ID)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # the program cannot ptrace this process or read its /proc entries
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        result = _start_and_watch(plan, has_proc=has_proc)
    except BaseException as error:
        result = {"problem": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        os.write(result_writer, json.dumps(result).encode())
    os._exit(0)


def _run_weak(plan: Plan) -> dict[str, Any]:
    """Run without namespaces: only limits, an empty environment, and a seccomp filter where available."""
    _write_files(plan)
    if sys.platform.startswith("linux"):
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    return _start_and_watch(plan, has_proc=False)


def _write_files(plan: Plan) -> None:
    for name, text in plan.files.items():
        if plan.throwaway:
            os.makedirs(os.path.dirname(os.path.join(plan.folder, name)), exist_ok=True)
        if name.endswith("/"):
            continue
        # Model output may contain lone surrogates, which UTF-8 cannot encode.
        with open(os.path.join(plan.folder, name), "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)


def _start_and_watch(plan: Plan, *, has_proc: bool) -> dict[str, Any]:
    error_reader, error_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(error_reader)
        try:
            _exec_program(plan)
        except BaseException as error:
            os.write(error_writer, f"{type(error).__name__}: {error}".encode())
        os._exit(SETUP_FAILED)
    os.close(error_writer)
    with os.fdopen(error_reader) as file:
        problem = file.read()  # empty if the program started: exec closes the pipe
    if problem:
        return {"problem": problem}
    return watch(pid, plan.lifeline, plan.limits if has_proc else None)


def _exec_program(plan: Plan) -> NoReturn:
    os.chdir(plan.folder)
    if plan.mode == WEAK:
        _drop_root(plan)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the OOM killer picks this process first
    apply_limits(plan.limits)
    if sys.platform.startswith("linux"):
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if plan.filter_calls and seccomp.has_filter():
            # In its own pid namespace a program can signal only itself and its children.
            seccomp.install(network=plan.network, signals=plan.mode != WEAK)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec keeps ignored signals ignored
        signal.signal(number, signal.SIG_DFL)
    os.execve(plan.argv[0], plan.argv, plan.env)


def _drop_root(plan: Plan) -> None:
    """Drop root, to which process limits do not apply, if an unprivileged user can execute the program."""
    if os.geteuid() != 0 or plan.uid is None:
        return
    os.setgroups([])
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, 0)
    if os.access(plan.argv[0], os.X_OK, effective_ids=True):
        os.setresuid(plan.uid, plan.uid, plan.uid)
    else:
        os.setresuid(0, 0, 0)


_MODES = {ROOT: _run_isolated, USER: _run_isolated, WEAK: _run_weak}
