"""`spawn_isolated` starts a command in its own namespaces."""

from __future__ import annotations

import contextlib
import functools
import itertools
import marshal
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from burnish.errors import UserError
from burnish.isolation.cgroup import Cgroup, find_parent, remove_stale
from burnish.isolation.limits import Limits
from burnish.isolation.plan import BUBBLEWRAP, MINIMAL, WEAK, Plan
from burnish.isolation.rootfs import BOX

_FIRST_UID, _NUM_UIDS = 61184, 4000  # range of systemd's dynamic users
_STOP_SECONDS = 10.0
_counter = itertools.count(os.getpid())

# Python that starts fast and ignores the environment and the user's files.
BARE_PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B")


class IsolatedProcess(subprocess.Popen):
    """A Popen that holds its program's lifeline: the program dies when this object is closed or this process exits."""

    lifeline: IO[bytes] | None = None
    weak = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        super().__exit__(kind, error, trace)

    def stop(self) -> None:
        """Kill the program and everything it started."""
        if self.lifeline is not None:
            self.lifeline.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The launcher kills everything and exits. Killed itself, it would leave that to the kernel.
            self.wait(_STOP_SECONDS)
        if self.weak or self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()


def spawn_isolated(
    argv: Sequence[str],
    *,
    network: bool = False,
    readable: Iterable[str] = (),
    writable: Iterable[str] = (),
    files: Mapping[str, str] | None = None,
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    pass_fds: Sequence[int] = (),
    report: int | None = None,
    filter_calls: bool = True,
    throwaway: bool = False,
    same_user: bool = False,
    view: str = MINIMAL,
    mode: str | None = None,
    **streams: Any,
) -> IsolatedProcess:
    """Start a command in its own pid, mount, ipc and network namespaces.

    With the view MINIMAL, for programs of strangers, it is an unprivileged user in a user namespace. It sees the
    system's programs and libraries, this Python, `readable` and `writable` (paths that do not exist are skipped), and a
    private folder /box, also available as /tmp, with `files` (name -> text). Only `writable` and the private folder are
    writable; nothing else exists. It starts in `folder`, by default the private one. With `throwaway` the root outside
    the bind mounts is also writable, `files` may have absolute names there (a name that ends in / is an empty folder),
    and its content is discarded at the end. With `same_user` it has this user's access to the files that it sees, also
    if this user is root. HOST and READ_ONLY_HOST, for the user's own functions: see plan.py.

    The command gets exactly the environment `env`, the descriptors `pass_fds`, and stdin, stdout and stderr (`streams`
    are those arguments of Popen). The returned process exits as the command does; if it could not be started, with
    SETUP_FAILED and a line on stderr. A JSON object with `status`, `killed` (by which limit), `cpu` and `counted` (how
    memory is), or `problem`, is written to the descriptor `report`. Killing the process or its process group kills
    everything the command started, even processes in other sessions; so does the exit of this process.

    `mode` defaults to `isolation().mode`. WEAK has no namespaces; `folder` must then be a folder outside.
    """
    if mode is None:
        from burnish.isolation.probe import isolation  # which starts a process here

        mode = isolation().mode
    executable = argv[0] if os.path.isabs(argv[0]) else _which(argv[0])
    lifeline, lifeline_writer = os.pipe()
    plan = Plan(
        argv=[executable, *argv[1:]],
        mode=mode,
        env=dict(env or {}),
        folder=folder or BOX,
        uid=None if os.geteuid() != 0 else 0 if same_user else _FIRST_UID + next(_counter) % _NUM_UIDS,
        lifeline=lifeline,
        report=report,
        pass_fds=tuple(pass_fds),
        files=dict(files or {}),
        readable=[*interpreter_folders(), *map(os.path.abspath, readable)],
        writable=[*map(os.path.abspath, writable)],
        view=view,
        network=network,
        filter_calls=filter_calls,
        throwaway=throwaway,
        limits=asdict(limits or Limits()),
        cgroup=None if mode == WEAK else _cgroup_parent(),
        bubblewrap=shutil.which("bwrap") if mode == BUBBLEWRAP else None,
    )
    try:
        process = _launch(plan, streams)
    except BaseException:
        os.close(lifeline_writer)
        raise
    finally:
        os.close(lifeline)
    process.lifeline = os.fdopen(lifeline_writer, "wb", buffering=0)
    process.weak = mode == WEAK
    return process


# The launcher gets its modules as code: importing them would take longer, above all without files of bytecode.
_START = """
import marshal, os, sys
with os.fdopen(int(sys.argv[1]), "rb") as file:
    modules, plan = marshal.load(file)
module = type(sys)
burnish = sys.modules["burnish"] = module("burnish")
burnish.isolation = sys.modules["burnish.isolation"] = module("burnish.isolation")
for name, code in modules:
    part = sys.modules["burnish.isolation." + name] = module("burnish.isolation." + name)
    exec(code, part.__dict__)
    setattr(burnish.isolation, name, part)
part.main(plan, modules)
"""
_LAUNCHER_MODULES = (
    *("plan", "linux", "seccomp", "rlimits", "rootfs", "watch", "cgroup", "bubblewrap", "program", "weak", "launcher"),
)


@functools.cache
def _launcher_code() -> list[tuple[str, Any]]:
    loaders = {name: SourceFileLoader(name, str(Path(__file__).with_name(f"{name}.py"))) for name in _LAUNCHER_MODULES}
    return [(name, loader.get_code(name)) for name, loader in loaders.items()]


def _launch(plan: Plan, streams: Mapping[str, Any]) -> IsolatedProcess:
    with tempfile.TemporaryFile() as file:
        marshal.dump((_launcher_code(), vars(plan)), file)
        file.seek(0)
        descriptors = [file.fileno(), plan.lifeline, *plan.pass_fds, *([] if plan.report is None else [plan.report])]
        return IsolatedProcess(
            [*BARE_PYTHON, "-c", _START, str(file.fileno())],
            env={},
            pass_fds=descriptors,
            start_new_session=True,
            **streams,
        )


@functools.cache
def package_folders() -> tuple[str, ...]:
    """Folders of installed packages, also those that a virtual environment takes from others; not the user's own."""
    own = site.getusersitepackages()
    names = ("site-packages", "dist-packages")
    return tuple(dict.fromkeys(path for path in sys.path if os.path.basename(path) in names and path != own))


@functools.cache
def interpreter_folders() -> tuple[str, ...]:
    """Folders of this Python and of its installed packages."""
    paths = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(BARE_PYTHON[0]), *package_folders()]
    paths += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    resolved = {os.path.realpath(path) for path in paths if path}
    return tuple(sorted({*resolved, *(path for path in paths if path)}))


def _which(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UserError(f"{name} is not installed")
    return path


@functools.cache
def _cgroup_parent() -> str | None:
    """Where control groups for programs can be created, and processes moved to; None if that is not allowed."""
    parent = find_parent()
    if parent is None:
        return None
    remove_stale(parent)
    try:
        group = Cgroup(parent, asdict(Limits(memory_mb=64)))
    except OSError:
        return None
    path = f"{parent}/{group.name}/cgroup.procs"
    joined = subprocess.run(["/bin/sh", "-c", 'echo 0 > "$1"', "sh", path], stderr=subprocess.DEVNULL)
    group.remove()
    return parent if joined.returncode == 0 else None
