"""The file system that isolated processes see."""

from __future__ import annotations

import os

from burnish.isolation import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BOX = "/box"  # the private folder inside
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
DEVICES = ("null", "full", "random", "urandom")  # not zero: a shared mapping of it is memory that no limit counts
_OLD_ROOT = "/.old"
_MAX_INODES = 4096
MAX_SHM_MB = 16  # POSIX semaphores and shared memory
_SYSCTLS = {  # of the new IPC namespace: no System V objects, no POSIX message queues
    "sys/kernel/shmmni": "0",
    "sys/kernel/shmall": "0",
    "sys/kernel/msgmni": "0",
    "sys/kernel/sem": "0 0 0 0",
    "sys/fs/mqueue/queues_max": "0",
}

_OPTION_FLAGS = {
    "ro": linux.MS_RDONLY,
    "nosuid": linux.MS_NOSUID,
    "nodev": linux.MS_NODEV,
    "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME,
    "nodiratime": linux.MS_NODIRATIME,
    "relatime": linux.MS_RELATIME,
}


class Root:
    """What was mounted: whether /proc shows the new pid namespace, and the folders in memory."""

    def __init__(self, *, has_proc: bool, in_memory: list[str]) -> None:
        self.has_proc = has_proc
        self.in_memory = in_memory


def build_root(readable: Iterable[str], writable: Iterable[str], box_mb: int, throwaway: bool = False) -> Root:
    """Replace the root of this mount namespace by an empty one with bind mounts of the given paths.

    Only the private folder and `writable` are writable. Paths that are not listed do not exist: home folders, /run with
    its sockets, /tmp, other devices. With `throwaway` the root outside the bind mounts is writable too, and its content
    is discarded at the end.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    _mount_tmpfs("/tmp", box_mb if throwaway else 1, mode="777" if throwaway else "755")
    os.mkdir("/tmp" + _OLD_ROOT)
    linux.pivot_root("/tmp", "/tmp" + _OLD_ROOT)
    os.chdir("/")
    binds: dict[str, bool] = dict.fromkeys([*SYSTEM, *SYSTEM_FILES, *readable], False) | dict.fromkeys(writable, True)
    for path in sorted(binds):  # folders before their contents
        if os.path.lexists(_OLD_ROOT + path) and not _is_bound(path, binds):
            _bind(path, writable=binds[path])
    os.mkdir("/dev")
    _make_devices("/dev", _OLD_ROOT + "/dev")
    os.mkdir("/proc")
    has_proc = _mount_proc(read_only=True)
    os.mkdir(BOX)
    _mount_tmpfs(BOX, box_mb)
    if not os.path.lexists("/tmp"):
        os.symlink(BOX, "/tmp")
    linux.unmount(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)
    if not throwaway:
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("none", "/", None, flags)
    return Root(has_proc=has_proc, in_memory=[BOX, "/dev/shm", *(["/"] if throwaway else [])])


def use_host_root() -> Root:
    """Keep the files of the host; only /proc is that of the new pid namespace."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    return Root(has_proc=_mount_proc(read_only=False), in_memory=[])


def use_read_only_host_root(folder: str, folder_mb: int) -> Root:
    """Keep the files of the host, read-only and without its devices. Only `folder` is writable, and empty."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    if not _mount_proc(read_only=True):
        # The host's /proc would show the environment of other processes of this user.
        raise OSError("/proc of the new pid namespace cannot be mounted, as in containers that mask parts of /proc")
    attributes = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOSUID
    linux.set_mount_attributes("/", attributes)
    _mount_tmpfs(folder, 1, mode="755")
    _make_devices(folder, "/dev", allow_again=True)
    linux.mount(folder, "/dev", None, linux.MS_MOVE)
    _mount_tmpfs(folder, folder_mb, mode="700")
    return Root(has_proc=True, in_memory=[folder, "/dev/shm"])


def forbid_ipc(proc: int) -> None:
    """Forbid System V IPC and message queues in this IPC namespace, which must be a new one.

    Older kernels let only root of the machine do that; there, and everywhere else, the seccomp filter does.
    """
    for name, value in _SYSCTLS.items():
        try:
            descriptor = os.open(name, os.O_WRONLY, dir_fd=proc)
        except OSError:
            continue
        try:
            os.write(descriptor, value.encode())
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _mount_tmpfs(path: str, size_mb: int, mode: str = "777") -> None:
    options = f"size={size_mb}m,nr_inodes={_MAX_INODES},mode={mode}"
    linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def _is_bound(path: str, binds: dict[str, bool]) -> bool:
    """Whether a parent folder is already bound with the same access."""
    parent = os.path.dirname(path)
    while parent != "/":
        if binds.get(parent) == binds[path]:
            return True
        parent = os.path.dirname(parent)
    return False


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
            _touch(path)
    linux.mount(source, path, None, linux.MS_BIND | linux.MS_REC)
    _protect(path, linux.MS_NOSUID | linux.MS_NODEV | (0 if writable else linux.MS_RDONLY))


def _protect(path: str, flags: int) -> None:
    """Add flags to the mount at `path` and to every mount below it."""
    real = os.path.realpath(path)
    with open(f"{_OLD_ROOT}/proc/self/mountinfo", "rb") as lines:
        mounts = [line.split() for line in lines]
    for fields in mounts:
        point = os.fsdecode(_unescape(fields[4]))
        if point == real or point.startswith(real.rstrip("/") + "/"):
            # Some flags are locked, so keep all.
            kept = sum(_OPTION_FLAGS.get(option, 0) for option in fields[5].decode().split(","))
            linux.mount("none", point, None, linux.MS_REMOUNT | linux.MS_BIND | kept | flags)


def _unescape(field: bytes) -> bytes:
    """A path in mountinfo, where spaces and other characters are octal numbers."""
    first, *rest = field.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def _make_devices(folder: str, source: str, *, allow_again: bool = False) -> None:
    """Bind harmless devices; with `allow_again` the source is mounted without devices."""
    for name in DEVICES:
        _touch(f"{folder}/{name}")
        linux.mount(f"{source}/{name}", f"{folder}/{name}", None, linux.MS_BIND)
        if allow_again:
            flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_NOSUID | linux.MS_NOEXEC
            linux.mount("none", f"{folder}/{name}", None, flags)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
    os.symlink("/proc/self/fd", f"{folder}/fd")
    os.mkdir(f"{folder}/shm")
    _mount_tmpfs(f"{folder}/shm", MAX_SHM_MB)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _mount_proc(*, read_only: bool) -> bool:
    """Mount /proc of the new pid namespace; False if not allowed, as in containers that mask parts of /proc."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | (linux.MS_RDONLY if read_only else 0)
    try:
        linux.mount("proc", "/proc", "proc", flags)
    except OSError:
        return False
    return True
