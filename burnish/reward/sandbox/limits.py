"""Resource limits of a sandboxed program."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_MB = 2**20
_LIBRARIES_MB = 2048  # allowance for address space that libraries reserve but do not use


@dataclass(frozen=True)
class Limits:
    """None means no limit. If isolated, memory and processes are limited for a program and its children together."""

    cpu_seconds: float | None = None
    memory_mb: int | None = None
    file_mb: int | None = 64  # for one file, and for the private folder in total
    processes: int | None = 64  # threads count
    open_files: int | None = 128


def apply_limits(limits: Limits) -> None:
    """Set this process's resource limits, for itself and all its children."""
    _set(resource.RLIMIT_CORE, 0)
    if limits.cpu_seconds is not None:
        whole = int(limits.cpu_seconds) + 1
        _set(resource.RLIMIT_CPU, whole, whole + 1)
    if limits.memory_mb is not None:
        # DATA makes an allocation fail cleanly; AS also stops shared mappings, which DATA does not count.
        _set(resource.RLIMIT_DATA, limits.memory_mb * _MB)
        _set(resource.RLIMIT_AS, (limits.memory_mb + _LIBRARIES_MB) * _MB)
    if limits.file_mb is not None:
        _set(resource.RLIMIT_FSIZE, limits.file_mb * _MB)
    if limits.processes is not None:
        _set(resource.RLIMIT_NPROC, limits.processes)
    if limits.open_files is not None:
        _set(resource.RLIMIT_NOFILE, limits.open_files)


def _set(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, capped at the current hard limit, which an unprivileged process cannot raise."""
    _, ceiling = resource.getrlimit(kind)
    values = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        values = [min(value, ceiling) for value in values]
    resource.setrlimit(kind, tuple(values))
