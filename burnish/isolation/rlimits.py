"""Set the resource limits of a process, which its children inherit."""

from __future__ import annotations

import resource

_MB = 2**20
_LIBRARIES_MB = 2048  # allowance for address space that libraries reserve but do not use
_PENDING_SIGNALS = 1024
_LOCKED_MB = 8

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def apply_limits(limits: Mapping[str, Any], *, per_process_memory: bool = True) -> None:
    """Set this process's resource limits (fields of `Limits`), for itself and all its children."""
    _set("CORE", 0)
    _set("MSGQUEUE", 0)
    _set("SIGPENDING", _PENDING_SIGNALS)
    _set("MEMLOCK", _LOCKED_MB * _MB)
    if limits["cpu_seconds"] is not None:
        whole = int(limits["cpu_seconds"]) + 1
        _set("CPU", whole, whole + 1)
    if limits["memory_mb"] is not None and per_process_memory:
        # DATA makes an allocation fail cleanly; AS also stops mappings that DATA does not count.
        _set("DATA", limits["memory_mb"] * _MB)
        _set("AS", (limits["memory_mb"] + _LIBRARIES_MB) * _MB)
    if limits["file_mb"] is not None:
        _set("FSIZE", limits["file_mb"] * _MB)
    if limits["processes"] is not None:
        _set("NPROC", limits["processes"])
    if limits["open_files"] is not None:
        _set("NOFILE", limits["open_files"])


def _set(name: str, soft: int, hard: int | None = None) -> None:
    """Set a limit, capped at the current hard limit, which an unprivileged process cannot raise."""
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if kind is None:  # only Linux has all of them
        return
    _, ceiling = resource.getrlimit(kind)
    values = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        values = [min(value, ceiling) for value in values]
    resource.setrlimit(kind, (values[0], values[1]))
