"""`spawn_isolated` starts a command in its own namespaces; `isolation()` reports which layers this system supports."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from burnish.errors import UserError
from burnish.reward.sandbox.launcher import ROOT, USER, WEAK, Plan
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.rootfs import BOX

_SOURCE_ROOT = str(Path(__file__).parents[3])
_FIRST_UID, _NUM_UIDS = 61184, 4000  # range of systemd's dynamic users
_PROBE_SECONDS = 20.0
_STOP_SECONDS = 2.0
_counter = itertools.count(os.getpid())

# Python that starts fast and ignores the environment and the user's files.
BARE_PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B")


@dataclass(frozen=True)
class Isolation:
    """The isolation layers of this system, each verified by a test program."""

    user: bool
    pid: bool
    net: bool
    mount: bool
    rlimits: bool
    seccomp: bool
    mode: str  # ROOT, USER or WEAK
    description: str

    @property
    def strong(self) -> bool:
        """Whether programs get their own namespaces."""
        return self.user and self.pid and self.net and self.mount


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
        if not self.weak:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # The watcher exits, the kernel kills the other processes, and then the launcher exits.
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
    mode: str | None = None,
    **streams: Any,
) -> IsolatedProcess:
    """Start a command in its own user, pid, mount, ipc and network namespaces, as an unprivileged user.

    The program sees the system's programs and libraries, this Python, `readable` and `writable` (paths that do not
    exist are skipped), and a private folder /box, also available as /tmp, with `files` (name -> text). Only `writable`
    and the private folder are writable; nothing else exists. It gets exactly the environment `env`, the descriptors
    `pass_fds`, and stdin, stdout and stderr (`streams` are those arguments of Popen). It starts in `folder`, by default
    the private one. With `throwaway` the root outside the bind mounts is also writable, `files` may have absolute names
    there (a name that ends in / is an empty folder), and its content is discarded at the end.

    The returned process exits like the program, with the same exit status or signal; if the program could not be
    started, with SETUP_FAILED and a line on stderr. A JSON object with `status`, `killed` and `cpu`, or `problem`, is
    written to the descriptor `report`. Killing the process or its process group kills everything the program started,
    even processes in other sessions; so does the exit of this process.

    `mode` defaults to `isolation().mode`. WEAK has no namespaces; `folder` must then be a folder outside.
    """
    mode = isolation().mode if mode is None else mode
    executable = argv[0] if os.path.isabs(argv[0]) else _which(argv[0])
    lifeline, lifeline_writer = os.pipe()
    plan = Plan(
        argv=[executable, *argv[1:]],
        mode=mode,
        env=dict(env or {}),
        folder=folder or BOX,
        uid=_FIRST_UID + next(_counter) % _NUM_UIDS if os.geteuid() == 0 else None,
        lifeline=lifeline,
        report=report,
        files=dict(files or {}),
        readable=[*interpreter_folders(), *map(os.path.abspath, readable)],
        writable=[*map(os.path.abspath, writable)],
        network=network,
        filter_calls=filter_calls,
        throwaway=throwaway,
        limits=limits or Limits(),
    )
    try:
        process = _launch(plan, pass_fds, streams)
    except BaseException:
        os.close(lifeline_writer)
        raise
    finally:
        os.close(lifeline)
    process.lifeline = os.fdopen(lifeline_writer, "wb", buffering=0)
    process.weak = mode == WEAK
    return process


def _launch(plan: Plan, pass_fds: Sequence[int], streams: Mapping[str, Any]) -> IsolatedProcess:
    with tempfile.TemporaryFile("w+") as file:
        json.dump(asdict(plan), file)
        file.seek(0)
        code = f"import sys; sys.path.append({_SOURCE_ROOT!r}); from burnish.reward.sandbox.launcher import main; "
        descriptors = [file.fileno(), plan.lifeline, *pass_fds, *([] if plan.report is None else [plan.report])]
        return IsolatedProcess(
            [*BARE_PYTHON, "-c", f"{code} main({file.fileno()})"],
            env={},
            pass_fds=descriptors,
            start_new_session=True,
            **streams,
        )


@functools.cache
def interpreter_folders() -> tuple[str, ...]:
    """Folders of this Python and of its installed packages."""
    import sysconfig

    paths = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(BARE_PYTHON[0])]
    paths += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    resolved = {os.path.realpath(path) for path in paths if path}
    return tuple(sorted({*resolved, *(path for path in paths if path)}))


def _which(name: str) -> str:
    import shutil

    path = shutil.which(name)
    if path is None:
        raise UserError(f"{name} is not installed")
    return path


@functools.cache
def isolation() -> Isolation:
    """The layers that this system supports, determined by running a test program once per process."""
    if not sys.platform.startswith("linux"):
        return _without_namespaces(f"no namespaces on {sys.platform}")
    reasons = []
    for mode in (ROOT, USER) if os.geteuid() == 0 else (USER,):
        layers, problem = _probe(mode)
        if layers is not None:
            limits = ", with limits" + (" and a seccomp filter" if layers["seccomp"] else "")
            description = f"programs run in their own user, pid, network and mount namespaces{limits}"
            current = Isolation(**layers, mode=mode, description=description)
            if current.strong:
                return current
            problem = "the test program could see outside its namespaces"
        reasons.append(problem)
    return _without_namespaces("; ".join(reasons))


def _without_namespaces(reason: str) -> Isolation:
    layers, problem = _probe(WEAK)
    reason += "" if layers is not None else f"; {problem}"
    weak = {"rlimits": False, "seccomp": False} if layers is None else {k: layers[k] for k in ("rlimits", "seccomp")}
    description = f"programs cannot be isolated here ({reason}): they would run as this user, with resource limits only"
    return Isolation(user=False, pid=False, net=False, mount=False, **weak, mode=WEAK, description=description)


# Test program: prints what it can see as one JSON object.
_PROBE_PROGRAM = """
import json, os, resource, sys
def lines(path):
    try:
        return open(path).read().splitlines()
    except OSError:
        return []
def namespace(kind):
    try:
        return os.readlink("/proc/self/ns/" + kind)
    except OSError:
        return None
status = dict(line.split(":", 1) for line in lines("/proc/self/status") if ":" in line)
print(json.dumps({
    "pid": os.getpid(), "uid": os.getuid(), "outside": os.path.exists(sys.argv[1]),
    "interfaces": [line.split(":")[0].strip() for line in lines("/proc/self/net/dev")[2:]],
    "namespaces": {kind: namespace(kind) for kind in ("user", "pid", "net", "mnt")},
    "no_file_limit": resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY,
    "seccomp": status.get("Seccomp", "0").strip() == "2", "dropped": int(status.get("CapEff", "0"), 16) == 0,
}))
"""


def _probe(mode: str) -> tuple[dict[str, bool] | None, str]:
    """The layers that are effective in this mode; or None and why the test program did not start."""
    with tempfile.TemporaryDirectory() as folder:
        process = spawn_isolated(
            [*BARE_PYTHON, "-c", _PROBE_PROGRAM, folder],
            mode=mode,
            folder=folder if mode == WEAK else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                out, err = process.communicate(timeout=_PROBE_SECONDS)
                return _layers(json.loads(out), mode), ""
            except subprocess.TimeoutExpired:
                return None, f"no output within {_PROBE_SECONDS:g} s"
            except ValueError:
                return None, err.decode("utf-8", "replace").strip()[-300:]


def _layers(seen: dict[str, Any], mode: str) -> dict[str, bool]:
    separate = {kind: mode != WEAK and _differs(kind, inside) for kind, inside in seen["namespaces"].items()}
    return {
        "user": separate["user"] and seen["uid"] != 0 and seen["dropped"],
        "pid": separate["pid"] and seen["pid"] < 10,
        "net": separate["net"] and set(seen["interfaces"]) <= {"lo"},
        "mount": separate["mnt"] and not seen["outside"],
        "rlimits": not seen["no_file_limit"],
        "seccomp": seen["seccomp"],
    }


def _differs(kind: str, inside: str | None) -> bool:
    """Whether the namespace differs from this process's. Assumed if the sandbox has no /proc to compare."""
    return inside is None or inside != os.readlink(f"/proc/self/ns/{kind}")
