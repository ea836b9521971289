"""The root folder of an isolated program: an empty tmpfs with what it needs bound into it, and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from burnish.reward.sandbox import linux

BOX = "/box"  # the private folder inside
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SINGLE = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OLD = "/.old"
_BOX_INODES = 4096
_OCTAL = re.compile(rb"\\(\d{3})")  # how mountinfo writes a space

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
    """Replace the root of this mount namespace. True if /proc shows the new pid namespace, False if there is none.

    Only the private folder and `writable` can be written to. Everything not named does not exist: home folders, /run
    with its sockets, /tmp, other devices. A `throwaway` root can be written to where nothing of this system is shown,
    and what is written there is gone at the end.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    options = f"size={box_mb}m,nr_inodes={_BOX_INODES},mode=777" if throwaway else "size=1m,mode=755"
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    os.mkdir("/tmp" + _OLD)
    linux.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    shown: dict[str, bool] = dict.fromkeys([*SYSTEM, *_SINGLE, *readable], False) | dict.fromkeys(writable, True)
    for path in sorted(shown):  # a folder before what is inside it
        if os.path.lexists(_OLD + path) and not _is_there(path, shown):
            _show(path, writable=shown[path])
    _make_devices()
    has_proc = _mount_proc()
    os.mkdir(BOX)
    options = f"size={box_mb}m,nr_inodes={_BOX_INODES},mode=777"
    linux.mount("tmpfs", BOX, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    if not os.path.lexists("/tmp"):
        os.symlink(BOX, "/tmp")
    linux.unmount(_OLD)
    os.rmdir(_OLD)
    if not throwaway:
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("none", "/", None, flags)
    return has_proc


def _is_there(path: str, shown: dict[str, bool]) -> bool:
    """Is it inside a folder that is shown in the same way already?"""
    return any(str(parent) in shown and shown[str(parent)] == shown[path] for parent in Path(path).parents)


def _show(path: str, *, writable: bool) -> None:
    source = _OLD + path
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
    with open(f"{_OLD}/proc/self/mountinfo", "rb") as lines:
        mounts = [line.split() for line in lines]
    for fields in mounts:
        point = os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), fields[4]))
        if point == real or point.startswith(real.rstrip("/") + "/"):
            kept = sum(
                _OPTION_FLAGS.get(option, 0) for option in fields[5].decode().split(",")
            )  # some are locked: keep all
            linux.mount("none", point, None, linux.MS_REMOUNT | linux.MS_BIND | kept | flags)


def _make_devices() -> None:
    os.mkdir("/dev")
    for name in _DEVICES:
        Path("/dev", name).touch()
        linux.mount(f"{_OLD}/dev/{name}", f"/dev/{name}", None, linux.MS_BIND)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")


def _mount_proc() -> bool:
    """A /proc of the new pid namespace. Containers that mask parts of theirs do not allow one; then there is none."""
    os.mkdir("/proc")
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_RDONLY)
    except OSError:
        return False
    return True
