"""torch.profiler: traces in Chrome's format, which Perfetto, TensorBoard and `summary.py` read."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function

from burnish.profiling.plan import RoleProfile, union

SUFFIX = ".json.gz"
DEFAULT_CONTENTS = frozenset({"cpu", "cuda"})


class TorchProfiler:
    """Records all threads of the process: engines compute in their own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._profile: profile | None = None
        self._modules: ModuleLabels | None = None

    @staticmethod
    def check(device: torch.device, profile: RoleProfile) -> None:
        """It runs everywhere."""

    def start(self, profiles: Sequence[RoleProfile]) -> None:
        contents = union(profiles) or DEFAULT_CONTENTS
        self._profile = profile(
            activities=_activities(contents, self.device),
            profile_memory="memory" in contents,
            record_shapes="shapes" in contents,
            with_stack="stack" in contents,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self._profile.start()
        if "module" in contents:
            self._modules = ModuleLabels()

    def stop(self, paths: Sequence[Path]) -> list[Path]:
        recording, self._profile = self._profile, None
        assert recording is not None
        if self._modules is not None:
            self._modules.close()
            self._modules = None
        recording.stop()
        files = [path.with_name(path.name + SUFFIX) for path in paths]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(files[0]))
        for file in files[1:]:
            shutil.copyfile(files[0], file)
        return files

    def label(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)


class ModuleLabels:
    """Labels every forward pass of a module with its class, also in eager mode."""

    def __init__(self) -> None:
        self._open = threading.local()
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        label = record_function(f"module: {type(module).__name__}")
        label.__enter__()
        self._stack().append(label)

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._stack():  # empty where the module was entered before the recording
            self._stack().pop().__exit__(None, None, None)

    def _stack(self) -> list[record_function]:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        return self._open.stack


def _activities(contents: frozenset[str], device: torch.device) -> list[ProfilerActivity]:
    activities = [ProfilerActivity.CUDA] if device.type == "cuda" and "cuda" in contents else []
    # Labels are events of the CPU, and memory and shapes belong to its operators.
    return activities if contents == {"cuda"} and activities else [ProfilerActivity.CPU, *activities]
