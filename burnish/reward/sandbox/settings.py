"""SandboxSettings: the settings of the sandbox, from the config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.config.reward import SandboxConfig
    from burnish.config.sandbox import ProgramsConfig


@dataclass(frozen=True)
class SandboxSettings:
    """`sandbox.*` and `reward_model.sandbox_fusion.*`, as plain values."""

    allow_weak: bool = False
    timeout: float = 10.0  # seconds per test case
    memory_mb: int = 1024
    output_kb: int = 64  # each for stdout and stderr
    max_cases: int = 10
    max_parallel: int | None = None  # None: one per CPU core
    url: str | None = None  # of a SandboxFusion service; None runs programs locally
    max_concurrent: int = 64
    service_memory_mb: int = 1024

    @staticmethod
    def of(programs: ProgramsConfig, service: SandboxConfig) -> SandboxSettings:
        """From the two config sections."""
        return SandboxSettings(
            allow_weak=programs.allow_weak,
            timeout=programs.timeout,
            memory_mb=programs.memory_mb,
            output_kb=programs.output_kb,
            max_cases=programs.max_cases,
            max_parallel=programs.max_parallel,
            url=service.url,
            max_concurrent=service.max_concurrent,
            service_memory_mb=service.memory_limit_mb,
        )

    @property
    def num_parallel(self) -> int:
        """Programs to run concurrently."""
        if self.url is not None:
            return self.max_concurrent
        return self.max_parallel or num_cpus()


def num_cpus() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
