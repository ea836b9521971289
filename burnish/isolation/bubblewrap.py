"""The namespaces and mounts of a program by bubblewrap, where it is installed.

bubblewrap starts this Python as the init process, which does the rest: limits, the seccomp filter, the program.
"""

from __future__ import annotations

import os

from burnish.isolation.rootfs import BOX, DEVICES, MAX_SHM_MB, SYSTEM, SYSTEM_FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from burnish.isolation.plan import Plan

_ID = "1000"  # user and group id of the program


def command(plan: Plan, info: int, start: list[str]) -> list[str]:
    """The command line. bubblewrap writes the process id of `start`, its init process, to the descriptor `info`."""
    box_mb = plan.limits["file_mb"] or 64
    words = [plan.bubblewrap or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += [] if plan.network else ["--unshare-net"]
    words += ["--uid", _ID, "--gid", _ID, "--die-with-parent", "--as-pid-1", "--clearenv", "--info-fd", str(info)]
    words += _tmpfs("/", box_mb if plan.throwaway else 1)
    paths = dict.fromkeys([*SYSTEM, *SYSTEM_FILES, *plan.readable], "--ro-bind")
    paths |= dict.fromkeys(plan.writable, "--bind")
    for path in sorted(paths):  # folders before their contents
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.lexists(path):
            words += [paths[path], path, path]
    words += ["--dir", "/dev"]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    words += ["--symlink", "/proc/self/fd", "/dev/fd", *_tmpfs("/dev/shm", MAX_SHM_MB)]
    words += ["--proc", "/proc", *_tmpfs(BOX, box_mb)]
    words += [] if any(path.startswith("/tmp/") for path in paths) else ["--symlink", BOX, "/tmp"]
    words += [] if plan.throwaway else ["--remount-ro", "/"]
    words += ["--remount-ro", "/proc", "--chdir", BOX]
    return [*words, "--", *start]


def _tmpfs(path: str, size_mb: int) -> list[str]:
    return ["--perms", "0777", "--size", str(size_mb * 2**20), "--tmpfs", path]


def read_process_id(info: int) -> int:
    """The process id of the init process, from what bubblewrap writes; OSError if it could not start one."""
    text = b""
    while b"}" not in text:
        data = os.read(info, 4096)
        if not data:
            raise OSError("bubblewrap could not make the namespaces")
        text += data
    number = text.partition(b'"child-pid":')[2].lstrip()
    return int(number[: len(number) - len(number.lstrip(b"0123456789"))])
