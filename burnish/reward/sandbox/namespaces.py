"""Starting a command where it can reach nothing: `spawn_isolated`, and `isolation()`, which says what holds here."""

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
from typing import IO, Any

from burnish.errors import UserError
from burnish.reward.sandbox.inside import ROOT, USER, WEAK, Plan
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.root import BOX

_PACKAGES = str(Path(__file__).parents[3])
_FIRST_UID, _NUM_UIDS = 61184, 4000  # ids that systems keep for short-lived services
_PROBE_SECONDS = 20.0
_END_SECONDS = 2.0
_counter = itertools.count(os.getpid())

# A Python that starts fast, reads no environment and no user's files.
BARE_PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B")


@dataclass(frozen=True)
class Isolation:
    """What a sandboxed program is kept from here. Each layer was tried, not assumed."""

    user: bool
    pid: bool
    net: bool
    mount: bool
    rlimits: bool
    seccomp: bool
    way: str  # how programs are started
    sentence: str

    @property
    def strong(self) -> bool:
        """Does a program have namespaces of its own?"""
        return self.user and self.pid and self.net and self.mount


class IsolatedProcess(subprocess.Popen):
    """A Popen that owns its program's lifeline: when this object or its process goes, so does the program."""

    lifeline: IO[bytes] | None = None
    weak = False

    def __exit__(self, *exception: object) -> None:
        self.end()
        super().__exit__(*exception)

    def end(self) -> None:
        """Kill the program with everything it started."""
        if self.lifeline is not None:
            self.lifeline.close()
        if not self.weak:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # The watcher ends, the kernel then ends all others, and only after that the launcher comes back.
                self.wait(_END_SECONDS)
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
    way: str | None = None,
    **streams: Any,
) -> IsolatedProcess:
    """Start a command in user, pid, mount, ipc, network namespaces of its own, as an unprivileged user.

    It sees the system's programs and libraries, the Python that runs us, `readable` and `writable` (a path that does
    not exist is left out), and a private folder /box, also known as /tmp, that holds `files` (name -> text). All but
    `writable` and the private folder is read-only; nothing else exists for it. It has exactly the environment `env`,
    the open files `pass_fds` and its stdin, stdout and stderr (`streams` are those arguments of Popen). It starts in
    `folder`, by default the private one. With `throwaway` it may also write wherever nothing of this system is shown,
    `files` may have absolute names there (one that ends in / is an empty folder), and all of it is gone at the end.

    The process that is returned mirrors the program's end: same exit status, same signal; SETUP_FAILED with a line on
    stderr if it could not be started. A JSON object with `status`, `killed` and `cpu`, or `problem`, is written to the
    open file `report`. Killing the process, or its process group, kills all that the program started, even what went
    into a session of its own; so does the end of this process.

    `way` is how: by default `isolation().way`. The weak one has no namespaces; then `folder` must be a folder outside.
    """
    way = isolation().way if way is None else way
    executable = argv[0] if os.path.isabs(argv[0]) else _which(argv[0])
    lifeline, ours = os.pipe()
    plan = Plan(
        argv=[executable, *argv[1:]],
        way=way,
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
        os.close(ours)
        raise
    finally:
        os.close(lifeline)
    process.lifeline = os.fdopen(ours, "wb", buffering=0)
    process.weak = way == WEAK
    return process


def _launch(plan: Plan, pass_fds: Sequence[int], streams: Mapping[str, Any]) -> IsolatedProcess:
    with tempfile.TemporaryFile("w+") as file:
        json.dump(asdict(plan), file)
        file.seek(0)
        code = f"import sys; sys.path.append({_PACKAGES!r}); from burnish.reward.sandbox.inside import main; "
        passed = [file.fileno(), plan.lifeline, *pass_fds, *([] if plan.report is None else [plan.report])]
        return IsolatedProcess(
            [*BARE_PYTHON, "-c", f"{code} main({file.fileno()})"],
            env={},
            pass_fds=passed,
            start_new_session=True,
            **streams,
        )


@functools.cache
def interpreter_folders() -> tuple[str, ...]:
    """The folders of the Python that runs us and of the packages installed for it."""
    import sysconfig

    paths = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(BARE_PYTHON[0])]
    paths += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = {os.path.realpath(path) for path in paths if path}
    return tuple(sorted({*found, *(path for path in paths if path)}))


def _which(name: str) -> str:
    import shutil

    found = shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed here")
    return found


@functools.cache
def isolation() -> Isolation:
    """What holds on this system, found out by starting a program and asking it. Tried once per process."""
    if not sys.platform.startswith("linux"):
        return _without_namespaces(f"{sys.platform} has no namespaces")
    reasons = []
    for way in (ROOT, USER) if os.geteuid() == 0 else (USER,):
        seen, problem = _probe(way)
        if seen is not None:
            found = Isolation(**seen, way=way, sentence="")
            if found.strong:
                sentence = "programs run in user, pid, network and mount namespaces of their own"
                return Isolation(**seen, way=way, sentence=sentence + _limits_sentence(found))
            problem = "a program saw more than it should"
        reasons.append(problem)
    return _without_namespaces("; ".join(reasons))


def _limits_sentence(found: Isolation) -> str:
    return ", with limits" + (" and a filter on system calls" if found.seccomp else "")


def _without_namespaces(reason: str) -> Isolation:
    seen, problem = _probe(WEAK)
    reason += "" if seen is not None else f"; {problem}"
    holds = {"rlimits": False, "seccomp": False} if seen is None else {k: seen[k] for k in ("rlimits", "seccomp")}
    sentence = f"programs cannot be isolated here ({reason}): they would run as this user, held by resource limits only"
    return Isolation(user=False, pid=False, net=False, mount=False, **holds, way=WEAK, sentence=sentence)


# What a program inside finds. It prints one JSON object.
_QUESTIONS = """
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


def _probe(way: str) -> tuple[dict[str, bool] | None, str]:
    """Which layers hold for a program started in this way; or None and why it did not start."""
    with tempfile.TemporaryDirectory() as folder:
        process = spawn_isolated(
            [*BARE_PYTHON, "-c", _QUESTIONS, folder],
            way=way,
            folder=folder if way == WEAK else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                out, err = process.communicate(timeout=_PROBE_SECONDS)
                return _layers(json.loads(out), way), ""
            except subprocess.TimeoutExpired:
                return None, f"nothing came back within {_PROBE_SECONDS:g} s"
            except ValueError:
                return None, err.decode("utf-8", "replace").strip()[-300:]


def _layers(seen: dict[str, Any], way: str) -> dict[str, bool]:
    apart = {kind: way != WEAK and _differs(kind, inside) for kind, inside in seen["namespaces"].items()}
    return {
        "user": apart["user"] and seen["uid"] != 0 and seen["dropped"],
        "pid": apart["pid"] and seen["pid"] < 10,
        "net": apart["net"] and set(seen["interfaces"]) <= {"lo"},
        "mount": apart["mnt"] and not seen["outside"],
        "rlimits": not seen["no_file_limit"],
        "seccomp": seen["seccomp"],
    }


def _differs(kind: str, inside: str | None) -> bool:
    """Is that namespace another one than ours? Without a /proc inside it cannot be compared; it was asked for, then."""
    return inside is None or inside != os.readlink(f"/proc/self/ns/{kind}")
