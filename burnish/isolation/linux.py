"""Linux system calls that Python 3.11 lacks. Each raises OSError with the name of the call.

This module, like all that the launcher imports, avoids modules that are slow to import: every program of a model pays
for them.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
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
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CAP_SYS_ADMIN = 21
_NUM_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x20080522
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_libc: ctypes.CDLL | None = None


def _library() -> ctypes.CDLL:
    global _libc
    _libc = _libc or ctypes.CDLL(None, use_errno=True)
    return _libc


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2): move to new namespaces. A new pid namespace starts with the next child."""
    _check(_library().unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """mount(2)."""
    paths = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_library().mount(*paths, ctypes.c_ulong(flags), data), f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount and all mounts below it."""
    _check(_library().umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the former root appears at `old`."""
    _check(_library().pivot_root(os.fsencode(new), os.fsencode(old)), f"pivot_root to {new}")


def set_mount_attributes(path: str, attributes: int) -> None:
    """mount_setattr(2): add attributes to the mount at `path` and all mounts below it. OSError before Linux 5.12."""
    values = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, 0, 0))
    arguments = (ctypes.c_long(_AT_FDCWD), os.fsencode(path), ctypes.c_long(_AT_RECURSIVE), values, ctypes.c_long(32))
    _check(_library().syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments), f"mount_setattr {path}")


def prctl(option: int, *values: int | ctypes.c_void_p) -> None:
    """prctl(2) with unsigned long (or pointer) arguments."""
    longs = [value if isinstance(value, ctypes.c_void_p) else ctypes.c_ulong(value) for value in values]
    longs += [ctypes.c_ulong(0)] * (4 - len(longs))
    _check(_library().prctl(ctypes.c_int(option), *longs), f"prctl({option})")


def drop_capabilities(kept: int = 0) -> None:
    """Give up all capabilities except the bits of `kept`, also for programs that this process executes later."""
    for number in range(_NUM_CAPABILITIES):
        if not kept >> number & 1:
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError:  # older kernels have fewer capabilities
                break
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    sets = ctypes.create_string_buffer(struct.pack("IIIIII", kept, kept, 0, 0, 0, 0))
    _check(_library().capset(header, sets), "capset")
