"""Seccomp filter: blocks system calls that isolated processes do not need, above all those that escape the limits."""

from __future__ import annotations

import ctypes
import os
import struct

from burnish.isolation import linux

_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACE = 0x7E020000  # any CLONE_NEW... flag
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x40000
_UNIX, _INTERNET = 1, (2, 10)  # address families; a vsock (40) would reach the host of a virtual machine
_STREAM, _SEQPACKET, _TYPE_BITS = 1, 5, 0xF
_CLONE3 = 435
_NEWEST = 462  # mseal; a kernel may have calls that came after this list was made

# Same number on every architecture.
_NEWER = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448, "lsm_set_self_attr": 460,
}  # fmt: skip

# ptrace and similar calls; namespaces and mounts; kernel keys; memory that no limit counts: System V and POSIX IPC,
# memfd, pages in pipes (splice), asynchronous I/O; counters that all processes of a user share (inotify); interfaces
# that few programs use and that had vulnerabilities.
_X86_64 = {
    "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103, "uselib": 134, "personality": 135,
    "sysfs": 139, "modify_ldt": 154, "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "io_setup": 206, "lookup_dcookie": 212, "remap_file_pages": 216,
    "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "inotify_init": 253,
    "unshare": 272, "splice": 275, "tee": 276, "vmsplice": 278, "inotify_init1": 294, "perf_event_open": 298,
    "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "io_setup": 0, "lookup_dcookie": 18, "inotify_init1": 26, "umount2": 39, "mount": 40, "pivot_root": 41,
    "chroot": 51, "quotactl": 60, "vmsplice": 75, "splice": 76, "tee": 77, "acct": 89, "personality": 92,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117,
    "reboot": 142, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "add_key": 217, "request_key": 218,
    "keyctl": 219, "swapon": 224, "swapoff": 225, "remap_file_pages": 234, "perf_event_open": 241,
    "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294,
}  # fmt: skip

# Calls that signal another process or leave the process group, for programs without their own pid namespace:
# kill, rt_sigqueueinfo, tkill, tgkill, rt_tgsigqueueinfo, pidfd_send_signal, setpgid, setsid.
_X86_64_SIGNALS = (62, 129, 200, 234, 297, 424, 109, 112)
_AARCH64_SIGNALS = (129, 138, 130, 131, 240, 424, 154, 157)

# machine -> audit architecture, blocked calls, signal calls, and calls that are blocked with some arguments
_MACHINES = {
    "x86_64": (
        *(0xC000003E, _X86_64, _X86_64_SIGNALS),
        {"clone": 56, "mmap": 9, "prlimit64": 302, "socket": 41, "socketpair": 53},
    ),
    "aarch64": (
        *(0xC00000B7, _AARCH64, _AARCH64_SIGNALS),
        {"clone": 220, "mmap": 222, "prlimit64": 261, "socket": 198, "socketpair": 199},
    ),
}


def has_filter() -> bool:
    """Whether there is a filter for this machine's architecture."""
    return os.uname().machine in _MACHINES


def install(*, internet: bool, signals: bool) -> None:
    """Install the filter for this process and all its future children, permanently. Requires no_new_privs.

    Sockets are connected pairs, and `internet` sockets. Other unix sockets are blocked: they would reach
    servers of the host by a path or an abstract name. Without `signals` the process can neither signal others nor leave
    its process group.
    """
    arch, blocked, signal_calls, conditional = _MACHINES[os.uname().machine]
    numbers = {*blocked.values(), *_NEWER.values(), *(() if signals else signal_calls)}
    program = _program(arch, numbers, conditional, _INTERNET if internet else ())
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.cast(head, ctypes.c_void_p))


def _program(arch: int, blocked: set[int], conditional: dict[str, int], families: tuple[int, ...]) -> list[bytes]:
    """The BPF instructions; a comparison that does not match skips the instructions that depend on it."""
    lines = [_line(_LOAD, _ARCH), _line(_EQUAL, arch, 1, 0), _refuse(_ENOSYS), _line(_LOAD, _NUMBER)]
    lines += [_line(_ABOVE, _NEWEST + 1, 0, 1), _refuse(_ENOSYS)]  # also calls of the x32 ABI
    for number in sorted(blocked):
        lines += [_line(_EQUAL, number, 0, 1), _refuse(_EPERM)]
    # clone3 passes its flags in memory, which a filter cannot read; with ENOSYS the C library falls back to clone.
    lines += [_line(_EQUAL, _CLONE3, 0, 1), _refuse(_ENOSYS)]
    checks = {
        "clone": [_argument(0), _line(_ANY_BIT, _NEW_NAMESPACE, 0, 1), _refuse(_EPERM)],
        # Pages of a shared anonymous mapping stay allocated when they leave the page table, where no limit counts them.
        # Huge pages come from a pool of the whole machine.
        "mmap": [
            *(_argument(3), _line(_ANY_BIT, _MAP_HUGETLB, 0, 1), _refuse(_EPERM)),
            *(_line(_AND, _MAP_SHARED | _MAP_ANONYMOUS), _line(_EQUAL, _MAP_SHARED | _MAP_ANONYMOUS, 0, 1)),
            _refuse(_EPERM),
        ],
        # The limits of another process: the one that reaps its children, or one that checks its results.
        "prlimit64": [_argument(0), _line(_EQUAL, 0, 1, 0), _refuse(_EPERM)],
        "socket": _only(families),
        # A pair of datagram sockets can still be connected to other addresses.
        "socketpair": [*_only((_UNIX,)), _argument(1), _line(_AND, _TYPE_BITS), *_among((_STREAM, _SEQPACKET))],
    }
    for name, check in checks.items():
        lines += [_line(_EQUAL, conditional[name], 0, len(check) + 1), *check, _line(_RETURN, _ALLOW)]
    return [*lines, _line(_RETURN, _ALLOW)]


def _only(values: tuple[int, ...]) -> list[bytes]:
    """Refuse the call unless its first argument is one of these values."""
    return [_argument(0), *_among(values)]


def _among(values: tuple[int, ...]) -> list[bytes]:
    """Refuse the call unless what was loaded is one of these values."""
    equal = [_line(_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*equal, _refuse(_EPERM)]


def _argument(index: int) -> bytes:
    """Load the lower half of an argument; all flags are there. The machines above are little-endian."""
    return _line(_LOAD, _ARGUMENTS + 8 * index)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _line(_RETURN, _REFUSE | error)
