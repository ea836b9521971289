"""Stand-ins for what a machine without GPU, NPU and Nsight Systems lacks. They record the calls they get."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

FRAMES = 50  # of every allocation


class NpuStandIn(ModuleType):
    """Stands for torch_npu: records the arguments of its profiler."""

    def __init__(self) -> None:
        super().__init__("torch_npu")
        self.calls: list[dict[str, Any]] = []
        self.profiler = SimpleNamespace(
            profile=self._profile,
            ProfilerActivity=SimpleNamespace(CPU="CPU", NPU="NPU"),
            ProfilerLevel=SimpleNamespace(Level_none="none", Level0="0", Level1="1", Level2="2"),
            _ExperimentalConfig=lambda **options: options,
            tensorboard_trace_handler=self._handler,
        )

    def _profile(self, *, on_trace_ready: Any, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return SimpleNamespace(start=lambda: None, stop=lambda: on_trace_ready(None))

    def _handler(self, folder: str, analyse_flag: bool) -> Any:
        self.calls.append({"folder": folder, "analyse_flag": analyse_flag})
        return lambda recording: None


@contextlib.contextmanager
def npu_stand_in() -> Iterator[list[dict[str, Any]]]:
    library = NpuStandIn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch_npu", library)
        yield library.calls


@contextlib.contextmanager
def memory_stand_in() -> Iterator[list[dict[str, Any]]]:
    """Stands for the recorder of CUDA's allocator."""
    calls: list[dict[str, Any]] = []
    frame = {"name": "f", "filename": "f.py", "line": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: calls.append(options))
        patch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [[{"frames": [frame] * FRAMES}]]})
        yield calls


@contextlib.contextmanager
def nsys_stand_in(installed: bool = True) -> Iterator[list[list[str]]]:
    """Stands for the program nsys: records the commands that would replace this process."""
    commands: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BURNISH_UNDER_NSYS", "NSYS_PROFILING_SESSION_ID", "TORCHELASTIC_RUN_ID"):
            patch.delenv(name, raising=False)
        patch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}" if installed else None)
        patch.setattr(os, "execvpe", lambda program, words, environment: commands.append(list(words)))
        yield commands
