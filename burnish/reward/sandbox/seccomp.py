"""Seccomp filter: blocks system calls that model-written programs do not need or that could escape the namespaces."""

from __future__ import annotations

import ctypes
import os
import struct

from burnish.reward.sandbox import linux

_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACE = 0x7E020000  # any CLONE_NEW... flag
_FAMILIES = (1, 2, 10)  # unix, inet, inet6: a vsock would reach the host of a virtual machine
_X32 = 0x40000000
_CLONE3 = 435

# Same number on every architecture.
_NEWER = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "memfd_secret": 447,
}  # fmt: skip

# ptrace and similar calls, namespaces and mounts, kernel keys, memory that no limit counts, rarely used interfaces.
_X86_64 = {
    "shmget": 29, "ptrace": 101, "personality": 135, "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
    "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "personality": 92,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "ptrace": 117, "reboot": 142,
    "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225,
    "perf_event_open": 241, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294,
}  # fmt: skip

# Calls that signal another process or leave the process group, for programs without their own pid namespace:
# kill, rt_sigqueueinfo, tkill, tgkill, rt_tgsigqueueinfo, pidfd_send_signal, setpgid, setsid.
_X86_64_SIGNALS = (62, 129, 200, 234, 297, 424, 109, 112)
_AARCH64_SIGNALS = (129, 138, 130, 131, 240, 424, 154, 157)

# machine -> (audit architecture, blocked calls, signal calls, clone, socket)
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, _X86_64_SIGNALS, 56, 41),
    "aarch64": (0xC00000B7, _AARCH64, _AARCH64_SIGNALS, 220, 198),
}


def has_filter() -> bool:
    """Whether there is a filter for this machine's architecture."""
    return os.uname().machine in _MACHINES


def install(*, network: bool, signals: bool) -> None:
    """Install the filter for this process and all its future children, permanently. Requires no_new_privs.

    Without `network` only unix sockets are allowed; without `signals` the process can neither signal others nor leave
    its process group.
    """
    arch, blocked, signal_calls, clone, socket = _MACHINES[os.uname().machine]
    numbers = {*blocked.values(), *_NEWER.values(), *(() if signals else signal_calls)}
    program = _program(arch, numbers, clone, socket, _FAMILIES if network else _FAMILIES[:1])
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.cast(head, ctypes.c_void_p))


def _program(arch: int, blocked: set[int], clone: int, socket: int, families: tuple[int, ...]) -> list[bytes]:
    """The BPF instructions; a comparison that does not match skips the instructions that depend on it."""
    lines = [_line(_LOAD, _ARCH), _line(_EQUAL, arch, 1, 0), _refuse(_ENOSYS), _line(_LOAD, _NUMBER)]
    lines += [_line(_ABOVE, _X32, 0, 1), _refuse(_ENOSYS)]
    for number in sorted(blocked):
        lines += [_line(_EQUAL, number, 0, 1), _refuse(_EPERM)]
    # clone3 passes its flags in memory, which a filter cannot read; with ENOSYS the C library falls back to clone.
    lines += [_line(_EQUAL, _CLONE3, 0, 1), _refuse(_ENOSYS)]
    lines += [_line(_EQUAL, clone, 0, 4), _line(_LOAD, _ARGUMENT), _line(_ANY_BIT, _NEW_NAMESPACE, 0, 1)]
    lines += [_refuse(_EPERM), _line(_RETURN, _ALLOW)]
    lines += [_line(_EQUAL, socket, 0, len(families) + 2), _line(_LOAD, _ARGUMENT)]
    lines += [_line(_EQUAL, family, len(families) - index, 0) for index, family in enumerate(families)]
    lines += [_refuse(_EPERM), _line(_RETURN, _ALLOW)]
    return lines


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _line(_RETURN, _REFUSE | error)
