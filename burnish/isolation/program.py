"""Start the program of a plan in a child process, with its limits and without privileges."""

from __future__ import annotations

import os
import signal
import sys

from burnish.isolation import linux, seccomp
from burnish.isolation.plan import HOST, MINIMAL, ROOT, SETUP_FAILED, WEAK, Plan, describe, send
from burnish.isolation.rlimits import apply_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_FILE_CAPABILITIES = 0b11111  # CAP_CHOWN ... CAP_FSETID: root keeps its access to other users' files


def start_program(plan: Plan, proc: int) -> int:
    """Fork and execute the program; its process id. OSError if that fails. `proc` is an open, writable /proc."""
    error_reader, error_writer = os.pipe()
    program = os.fork()
    if program == 0:
        try:
            _exec_program(plan, proc)
        except BaseException as error:
            send(error_writer, describe(error))
        os._exit(SETUP_FAILED)
    for descriptor in (error_writer, *plan.pass_fds):
        os.close(descriptor)
    problem = os.read(error_reader, 4096)  # empty if the program started: exec closes the pipe
    os.close(error_reader)
    if problem:
        raise OSError(problem.decode("utf-8", "replace"))
    return program


def _exec_program(plan: Plan, proc: int) -> NoReturn:
    if plan.mode != WEAK:
        os.setsid()  # signals to its process group do not reach the launcher
    os.chdir(plan.folder)
    if plan.mode == WEAK:
        become_unprivileged(plan)
    # A reward worker sets its own limit of memory, after it has imported the user's file.
    apply_limits(plan.limits, per_process_memory=plan.view == MINIMAL)
    if sys.platform.startswith("linux"):
        _be_first_oom_victim(proc)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if plan.view != MINIMAL:
            linux.drop_capabilities(_FILE_CAPABILITIES if plan.mode == ROOT else 0)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if filters_calls(plan):
            # In its own pid namespace a program can signal only itself and its children. A worker without network has
            # internet sockets, in a namespace without interfaces: the error is the one that its author knows.
            seccomp.install(internet=plan.network or plan.view != MINIMAL, signals=plan.mode != WEAK)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # exec keeps ignored signals ignored
        signal.signal(number, signal.SIG_DFL)
    os.execve(plan.argv[0], plan.argv, plan.env)


def filters_calls(plan: Plan) -> bool:
    """Whether the program gets a seccomp filter."""
    return plan.filter_calls and plan.view != HOST and sys.platform.startswith("linux") and seccomp.has_filter()


def become_unprivileged(plan: Plan) -> None:
    """Become an ordinary user, who must be able to execute the program.

    A program that stayed root of the machine would be exempt from the limit of processes and own the system's files.
    """
    if os.geteuid() != 0 or plan.uid is None:
        return
    os.setgroups([])
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, plan.uid)
    if not os.access(plan.argv[0], os.X_OK):
        raise PermissionError(f"only root can execute {plan.argv[0]}, and programs of a model do not run as root")


def write_files(plan: Plan) -> None:
    for name, text in plan.files.items():
        if plan.throwaway:
            os.makedirs(os.path.dirname(os.path.join(plan.folder, name)), exist_ok=True)
        if name.endswith("/"):
            continue
        # Model output may contain lone surrogates, which UTF-8 cannot encode.
        with open(os.path.join(plan.folder, name), "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)


def _be_first_oom_victim(proc: int) -> None:
    """Let the OOM killer pick this process first. `proc` is a /proc that is writable."""
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # or the file belongs to root; exec would do that too
    descriptor = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc)
    os.write(descriptor, b"1000")
    os.close(descriptor)
