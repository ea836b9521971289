"""The Profiler protocol, and the registry of profiling tools."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from burnish.registry import Registry

if TYPE_CHECKING:
    import torch

    from burnish.profiling.plan import RoleProfile

PROFILERS = Registry("profiling tool", key="global_profiler.tool")
PROFILERS.register_lazy("torch", "burnish.profiling.torch_trace:TorchProfiler")
PROFILERS.register_lazy("torch_memory", "burnish.profiling.memory:MemoryProfiler")
PROFILERS.register_lazy("nsys", "burnish.profiling.nsight:NsightProfiler")
PROFILERS.register_lazy("npu", "burnish.profiling.npu:NpuProfiler")


class Profiler(Protocol):
    """One tool in one process. At most one recording runs at a time."""

    def __init__(self, device: torch.device) -> None: ...

    @staticmethod
    def check(device: torch.device, profile: RoleProfile) -> None:
        """UserError where this machine cannot record this role."""

    def start(self, profiles: Sequence[RoleProfile]) -> None:
        """Start a recording of these roles."""

    def stop(self, paths: Sequence[Path]) -> list[Path]:
        """End it and write it to these files, named without suffix. Returns the files."""
        ...

    def label(self, name: str) -> AbstractContextManager[object]:
        """Inside, events belong to this phase."""
        ...
