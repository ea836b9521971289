"""Linux system calls that Python 3.11 lacks. Each raises OSError with the name of the call."""

from __future__ import annotations

import ctypes
import functools
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2): move to new namespaces. A new pid namespace starts with the next child."""
    _check(_libc().unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """mount(2)."""
    paths = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc().mount(*paths, ctypes.c_ulong(flags), data), f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount and all mounts below it."""
    _check(_libc().umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the former root appears at `old`."""
    _check(_libc().pivot_root(os.fsencode(new), os.fsencode(old)), f"pivot_root to {new}")


def prctl(option: int, *values: int | ctypes.c_void_p) -> None:
    """prctl(2) with unsigned long (or pointer) arguments."""
    longs = [value if isinstance(value, ctypes.c_void_p) else ctypes.c_ulong(value) for value in values]
    longs += [ctypes.c_ulong(0)] * (4 - len(longs))
    _check(_libc().prctl(ctypes.c_int(option), *longs), f"prctl({option})")
