"""`isolation()` reports which layers of isolation this system supports, after running a test program."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from burnish.isolation.plan import BUBBLEWRAP, HOST, READ_ONLY_HOST, ROOT, USER, WEAK
from burnish.isolation.spawn import BARE_PYTHON, spawn_isolated

_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Isolation:
    """The isolation layers of this system, each verified by a test program."""

    user: bool
    pid: bool
    net: bool
    mount: bool
    rlimits: bool
    seccomp: bool
    memory: str  # how the memory of all processes of a program is limited: CGROUP, SUM or PER_PROCESS
    mode: str  # ROOT, USER or WEAK
    reason: str = ""  # why stronger modes do not work

    @property
    def strong(self) -> bool:
        """Whether programs get their own namespaces and cannot hold memory that no limit counts."""
        return self.user and self.pid and self.net and self.mount and self.seccomp and self.memory != PER_PROCESS

    @property
    def description(self) -> str:
        """One line for the log."""
        if not self.strong:
            return f"programs cannot be isolated here ({self.reason}): they would run as this user, with limits only"
        maker = " made by bubblewrap" if self.mode == BUBBLEWRAP else ""
        namespaces = f"programs run in their own user, pid, network and mount namespaces{maker}"
        return f"{namespaces}, with limits and a seccomp filter; {self.memory}"

    @property
    def still_possible(self) -> list[str]:
        """What a hostile program can still do here."""
        kernel = "use a vulnerability of the kernel", "slow down others on the same cores, caches and memory bus"
        if self.strong:
            return [*kernel, *(() if self.memory == CGROUP else (_BURSTS,))]
        weak = "read every file that this user can read", "see other processes of this machine"
        network = () if self.seccomp else ("use the network", "signal other processes of this user")
        return [*weak, *network, "hold memory in several processes", *kernel]


CGROUP = "memory is limited by a control group"
SUM = "memory is limited by the sum over all processes"
PER_PROCESS = "memory is limited per process only"
_COUNTED = {"cgroup": CGROUP, "sum": SUM}
_BURSTS = (
    "exceed its memory limit for a twentieth of a second, before it is killed"
    " (no control group of version 2 with a memory controller is delegated to this user)"
)


@functools.cache
def isolation() -> Isolation:
    """The layers that this system supports, determined by running a test program once per process."""
    if not sys.platform.startswith("linux"):
        return _without_namespaces(f"no namespaces on {sys.platform}")
    reasons = []
    for mode in _program_modes():
        layers, problem = _probe(mode)
        if layers is not None:
            current = Isolation(**layers, mode=mode, reason="; ".join(reasons))
            if current.strong:
                return current
            missing = [name for name in ("user", "pid", "net", "mount", "seccomp") if not layers[name]]
            problem = f"the test program was not confined by {', '.join(missing) or 'a limit of memory'}"
        reasons.append(problem)
    return _without_namespaces("; ".join(reasons))


def _program_modes() -> list[str]:
    """Modes to try, the best first. Root gives each program an id of its own; others prefer bubblewrap."""
    by_user = [BUBBLEWRAP, USER] if shutil.which("bwrap") else [USER]
    return [ROOT, *by_user] if os.geteuid() == 0 else by_user


def _without_namespaces(reason: str) -> Isolation:
    layers, problem = _probe(WEAK)
    reason += "" if layers is not None else f"; {problem}"
    weak = {"rlimits": False, "seccomp": False} if layers is None else {k: layers[k] for k in ("rlimits", "seccomp")}
    return Isolation(
        user=False, pid=False, net=False, mount=False, **weak, memory=PER_PROCESS, mode=WEAK, reason=reason
    )  # fmt: skip


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
def seccomp():
    try:
        os.memfd_create("x")
    except (OSError, AttributeError):
        return True
    return False
status = dict(line.split(":", 1) for line in lines("/proc/self/status") if ":" in line)
print(json.dumps({
    "pid": os.getpid(), "uid": os.getuid(), "outside": os.path.exists(sys.argv[1]),
    "interfaces": [line.split(":")[0].strip() for line in lines("/proc/self/net/dev")[2:]],
    "namespaces": {kind: namespace(kind) for kind in ("user", "pid", "net", "mnt")},
    "no_file_limit": resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY,
    "seccomp": seccomp(), "dropped": int(status.get("CapEff", "0"), 16) == 0,
}))
"""


def _probe(mode: str) -> tuple[dict[str, Any] | None, str]:
    """The layers that are effective in this mode; or None and why the test program did not start."""
    with tempfile.TemporaryDirectory() as folder:
        out, err, report = _run_probe(
            [*BARE_PYTHON, "-c", _PROBE_PROGRAM, folder], mode=mode, folder=folder if mode == WEAK else None
        )
    try:
        return _layers(json.loads(out), mode, report), ""
    except ValueError:
        return None, err.strip()[-300:] or f"no output within {_PROBE_SECONDS:g} s"


def _run_probe(argv: Sequence[str], **options: Any) -> tuple[str, str, dict[str, Any]]:
    """Run a test program; its stdout, stderr and report."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as report_file:
        with os.fdopen(writer, "wb"):
            process = spawn_isolated(
                argv,
                report=writer,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **options,
            )
        with process:
            try:
                out, err = process.communicate(timeout=_PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                out, err = b"", b""
        report = report_file.read()
    return out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), json.loads(report) if report else {}


def _layers(seen: dict[str, Any], mode: str, report: dict[str, Any]) -> dict[str, Any]:
    separate = {kind: mode != WEAK and _differs(kind, inside) for kind, inside in seen["namespaces"].items()}
    return {
        "user": separate["user"] and seen["uid"] != 0 and seen["dropped"],
        "pid": separate["pid"] and seen["pid"] < 10,
        "net": separate["net"] and set(seen["interfaces"]) <= {"lo"},
        "mount": separate["mnt"] and not seen["outside"],
        "rlimits": not seen["no_file_limit"],
        "seccomp": seen["seccomp"],
        "memory": _COUNTED.get(report.get("counted", ""), PER_PROCESS),
    }


def _differs(kind: str, inside: str | None) -> bool:
    """Whether the namespace differs from this process's. Assumed if the sandbox has no /proc to compare."""
    return inside is None or inside != os.readlink(f"/proc/self/ns/{kind}")


@functools.cache
def worker_mode(*, network: bool, read_only: bool) -> tuple[str | None, str]:
    """The mode in which a worker can see the host's files and be isolated; or None, and why there is none.

    Tested once per process.
    """
    if not sys.platform.startswith("linux"):
        return None, f"no namespaces on {sys.platform}"
    view, problem = (READ_ONLY_HOST if read_only else HOST), ""
    for mode in (ROOT, USER) if os.geteuid() == 0 else (USER,):
        with tempfile.TemporaryDirectory() as folder:
            out, err, _ = _run_probe(
                [*BARE_PYTHON, "-c", "import os; print(os.getpid())"],
                **{"mode": mode, "view": view, "network": network, "folder": folder, "env": {"TMPDIR": folder}},
            )
        if out.strip() == "2":
            return mode, ""
        problem = (err.strip().splitlines() or ["the test program did not end"])[-1]
    return None, problem
