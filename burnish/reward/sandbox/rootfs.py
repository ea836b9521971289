"""The root file system of an isolated program: an empty tmpfs with bind mounts of the paths it needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from burnish.reward.sandbox import linux

BOX = "/box"  # the private folder inside
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OLD_ROOT = "/.old"
_BOX_INODES = 4096
_OCTAL = re.compile(rb"\\(\d{3})")  # mountinfo escapes spaces and other characters

_OPTION_FLAGS = {
    "ro": linux.MS_RDONLY,
    "nosuid": linux.MS_NOSUID,
    "nodev": linux.MS_NODEV,
    "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME,
    "nodiratime": linux.MS_NODIRATIME,
    "relatime": linux.MS_RELATIME,
}


def build_root(readable: Iterable[str], writable: Iterable[str], box_mb: int, throwaway: bool = False) -> bool:
    """Replace the root of this mount namespace. Returns whether /proc of the new pid namespace could be mounted.

    Only the private folder and `writable` are writable. Paths that are not listed do not exist: home folders, /run with
    its sockets, /tmp, other devices. With `throwaway` the root outside the bind mounts is writable too, and its content
    is discarded at the end.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    options = f"size={box_mb}m,nr_inodes={_BOX_INODES},mode=777" if throwaway else "size=1m,mode=755"
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    os.mkdir("/tmp" + _OLD_ROOT)
    linux.pivot_root("/tmp", "/tmp" + _OLD_ROOT)
    os.chdir("/")
    binds: dict[str, bool] = dict.fromkeys([*SYSTEM, *_SYSTEM_FILES, *readable], False) | dict.fromkeys(writable, True)
    for path in sorted(binds):  # folders before their contents
        if os.path.lexists(_OLD_ROOT + path) and not _is_bound(path, binds):
            _bind(path, writable=binds[path])
    _make_devices()
    has_proc = _mount_proc()
    os.mkdir(BOX)
    options = f"size={box_mb}m,nr_inodes={_BOX_INODES},mode=777"
    linux.mount("tmpfs", BOX, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    if not os.path.lexists("/tmp"):
        os.symlink(BOX, "/tmp")
    linux.unmount(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)
    if not throwaway:
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("none", "/", None, flags)
    return has_proc


def _is_bound(path: str, binds: dict[str, bool]) -> bool:
    """Whether a parent folder is already bound with the same access."""
    return any(str(parent) in binds and binds[str(parent)] == binds[path] for parent in Path(path).parents)


def _bind(path: str, *, writable: bool) -> None:
    source = _OLD_ROOT + path
    if os.path.islink(source):  # /lib is usr/lib on most systems
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            Path(path).touch()
    linux.mount(source, path, None, linux.MS_BIND | linux.MS_REC)
    protect(path, linux.MS_NOSUID | linux.MS_NODEV | (0 if writable else linux.MS_RDONLY))


def protect(path: str, flags: int) -> None:
    """Add flags to the mount at `path` and to every mount below it."""
    real = os.path.realpath(path)
    with open(f"{_OLD_ROOT}/proc/self/mountinfo", "rb") as lines:
        mounts = [line.split() for line in lines]
    for fields in mounts:
        point = os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[4]))
        if point == real or point.startswith(real.rstrip("/") + "/"):
            # Some flags are locked, so keep all.
            kept = sum(_OPTION_FLAGS.get(option, 0) for option in fields[5].decode().split(","))
            linux.mount("none", point, None, linux.MS_REMOUNT | linux.MS_BIND | kept | flags)


def _make_devices() -> None:
    os.mkdir("/dev")
    for name in _DEVICES:
        Path("/dev", name).touch()
        linux.mount(f"{_OLD_ROOT}/dev/{name}", f"/dev/{name}", None, linux.MS_BIND)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")


def _mount_proc() -> bool:
    """Mount /proc of the new pid namespace; False if not allowed, as in containers that mask parts of /proc."""
    os.mkdir("/proc")
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_RDONLY)
    except OSError:
        return False
    return True
