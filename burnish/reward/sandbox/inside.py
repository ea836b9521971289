"""The process between us and a sandboxed program: it enters the namespaces, starts the program and watches it.

It runs in a fresh interpreter, because the calls below concern the whole process and a training process has threads.

    launcher (outside)  ->  watcher (first process of the new pid namespace)  ->  program (no privileges)

When the launcher or whoever started it dies, the watcher ends; and with the first process of a pid namespace, the
kernel ends all others.
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
from burnish.reward.sandbox.root import build_root
from burnish.reward.sandbox.watch import watch

SETUP_FAILED = 125  # exit status when the program could not be started
ROOT, USER, WEAK = "root", "user", "weak"  # ways: namespaces made by root, by an ordinary user, or none
_INSIDE = 1000  # user and group id in the new user namespace
_SPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


@dataclass(frozen=True)
class Plan:
    """What the launcher is told, as JSON in an open file."""

    argv: list[str]
    way: str
    env: dict[str, str]
    folder: str
    uid: int | None  # an unprivileged id outside, where the launcher may choose one
    lifeline: int  # a pipe that nobody writes to: when its other end closes, all is over
    report: int | None  # where to write how the program ended
    files: dict[str, str] = field(default_factory=dict)  # written into the folder before the start
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    network: bool = False
    filter_calls: bool = True
    throwaway: bool = False
    limits: Limits = field(default_factory=Limits)

    @staticmethod
    def read(descriptor: int) -> Plan:
        """From JSON; closes the file."""
        with os.fdopen(descriptor) as file:
            values = json.load(file)
        return Plan(**values | {"limits": Limits(**values["limits"])})


def main(descriptor: int) -> NoReturn:
    """Start what the plan says, wait for its end, and end in the same way."""
    plan = Plan.read(descriptor)
    for kept in (plan.lifeline, plan.report):
        if kept is not None:
            os.set_inheritable(kept, False)
    try:
        ended = _WAYS[plan.way](plan)
    except BaseException as error:
        ended = {"problem": f"{type(error).__name__}: {error}"}
    if plan.report is not None:
        with contextlib.suppress(OSError):
            os.write(plan.report, json.dumps(ended).encode())
    _end_like(ended)


def _end_like(ended: dict[str, Any]) -> NoReturn:
    """Exit with the program's status, or die of its signal."""
    if "problem" in ended:
        sys.stderr.write(f"sandbox: {ended['problem']}\n")
        sys.stderr.flush()
        os._exit(SETUP_FAILED)
    if ended["status"] < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-ended["status"], signal.SIG_DFL)
        os.kill(os.getpid(), -ended["status"])
    os._exit(ended["status"] & 0xFF)


def _isolated(plan: Plan) -> dict[str, Any]:
    """Enter fresh namespaces and start the watcher as their first process; what the watcher says about the end."""
    by_root = plan.way == ROOT
    flags = _SPACES | (0 if plan.network else linux.CLONE_NEWNET) | (0 if by_root else linux.CLONE_NEWUSER)
    uid, gid = os.geteuid(), os.getegid()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the watcher changes the root for this process too
    linux.unshare(flags)
    if not by_root:
        _write_maps(proc, os.getpid(), uid, gid)
    said, saying = os.pipe()
    asked, asking = os.pipe()  # the watcher asks for its id maps
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (said, asked, telling):
            os.close(descriptor)
        _first_process(plan, saying, asking, told)
    for descriptor in (saying, asking, told):
        os.close(descriptor)
    if by_root and os.read(asked, 1):
        _write_maps(proc, pid, plan.uid, plan.uid)
        os.write(telling, b"1")
    with os.fdopen(said) as words:
        text = words.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"problem": "the sandbox ended without a word"}


def _write_maps(proc: int, pid: int, uid: int, gid: int) -> None:
    """One id inside, one outside. Only root may map an id that is not its own, or keep the right to change groups."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE} {uid} 1"), ("gid_map", f"{_INSIDE} {gid} 1")):
        descriptor = os.open(f"{pid}/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _first_process(plan: Plan, saying: int, asking: int, told: int) -> NoReturn:
    """Process 1 of the new pid namespace: build the root, give up rights, start the program and watch it."""
    try:
        mask = os.umask(0 if plan.throwaway else 0o022)  # its folders are the program's to write in
        has_proc = build_root(plan.readable, plan.writable, plan.limits.file_mb or 64, plan.throwaway)
        _write_files(plan)
        os.umask(mask)
        if plan.way == ROOT:
            os.setgroups([])
            linux.unshare(linux.CLONE_NEWUSER)
            os.write(asking, b"1")
            if not os.read(told, 1):
                raise OSError("no id maps")
            os.setresgid(_INSIDE, _INSIDE, _INSIDE)
            os.setresuid(_INSIDE, _INSIDE, _INSIDE)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # the program may not look into this process
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        ended = _start_and_watch(plan, sees_all=has_proc)
    except BaseException as error:
        ended = {"problem": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        os.write(saying, json.dumps(ended).encode())
    os._exit(0)


def _weak(plan: Plan) -> dict[str, Any]:
    """No namespaces: limits, a scrubbed environment, a filter on system calls where there is one."""
    _write_files(plan)
    if sys.platform.startswith("linux"):
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    return _start_and_watch(plan, sees_all=False)


def _write_files(plan: Plan) -> None:
    for name, text in plan.files.items():
        if plan.throwaway:
            os.makedirs(os.path.dirname(os.path.join(plan.folder, name)), exist_ok=True)
        if name.endswith("/"):
            continue
        # Model text may hold half a surrogate pair, which no encoding has.
        with open(os.path.join(plan.folder, name), "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)


def _start_and_watch(plan: Plan, *, sees_all: bool) -> dict[str, Any]:
    failed, failing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(failed)
        try:
            _become_program(plan)
        except BaseException as error:
            os.write(failing, f"{type(error).__name__}: {error}".encode())
        os._exit(SETUP_FAILED)
    os.close(failing)
    with os.fdopen(failed) as words:
        problem = words.read()  # ends when the program is started: the pipe closes then
    if problem:
        return {"problem": problem}
    return watch(pid, plan.lifeline, plan.limits if sees_all else None)


def _become_program(plan: Plan) -> NoReturn:
    os.chdir(plan.folder)
    if plan.way == WEAK:
        _give_up_root(plan)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, this goes first
    apply_limits(plan.limits)
    if sys.platform.startswith("linux"):
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if plan.filter_calls and seccomp.has_filter():
            # In a pid namespace of its own a program reaches itself and its children only.
            seccomp.install(network=plan.network, others=plan.way != WEAK)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    os.execve(plan.argv[0], plan.argv, plan.env)


def _give_up_root(plan: Plan) -> None:
    """Root becomes an unprivileged user if that one can still reach the program: process limits do not bind root."""
    if os.geteuid() != 0 or plan.uid is None:
        return
    os.setgroups([])
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, 0)
    if os.access(plan.argv[0], os.X_OK, effective_ids=True):
        os.setresuid(plan.uid, plan.uid, plan.uid)
    else:
        os.setresuid(0, 0, 0)


_WAYS = {ROOT: _isolated, USER: _isolated, WEAK: _weak}
