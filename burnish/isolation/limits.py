"""Limits: what an isolated process and its children may use."""

from __future__ import annotations

from dataclasses import dataclass

TIME, MEMORY, OUTPUT, PROCESSES = "time", "memory", "output", "processes"  # names of the limits


@dataclass(frozen=True)
class Limits:
    """None means no limit. Memory and processes are limited for a program and its children together."""

    cpu_seconds: float | None = None  # per process
    memory_mb: int | None = None
    file_mb: int | None = 64  # for one file, and for the private folder in total
    processes: int | None = 64  # threads count
    open_files: int | None = 128  # per process
