"""Ascend's profiler (torch_npu.profiler)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from burnish.errors import UserError
from burnish.profiling.plan import RoleProfile


class NpuProfiler:
    """Writes a folder per recording."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._analysis = True
        self._profile: Any = None
        self._folder: Path | None = None

    @staticmethod
    def check(device: torch.device, profile: RoleProfile) -> None:
        if device.type != "npu":
            raise UserError(
                f"Ascend's profiler requires an NPU; this run uses the {device.type}",
                key=profile.key,
                value="npu",
                hint="global_profiler.tool=torch",
            )

    def start(self, profiles: Sequence[RoleProfile]) -> None:
        import torch_npu

        library = torch_npu.profiler
        options = profiles[0].npu
        contents = options.contents
        activities = {"cpu": "CPU", "npu": "NPU"}
        level = {"level_none": "Level_none"}.get(options.level, options.level.capitalize())
        self._analysis = options.analysis
        self._profile = library.profile(
            activities=[getattr(library.ProfilerActivity, activities[name]) for name in activities if name in contents],
            record_shapes="shapes" in contents,
            profile_memory="memory" in contents,
            with_stack="stack" in contents,
            with_modules="module" in contents,
            experimental_config=library._ExperimentalConfig(profiler_level=getattr(library.ProfilerLevel, level)),
            on_trace_ready=self._write,
        )
        self._profile.start()

    def stop(self, paths: Sequence[Path]) -> list[Path]:
        """One folder: the library writes it once."""
        self._folder = paths[0]
        self._folder.mkdir(parents=True, exist_ok=True)
        recording, self._profile = self._profile, None
        recording.stop()
        return [paths[0]]

    def label(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)

    def _write(self, recording: Any) -> None:
        import torch_npu

        handler = torch_npu.profiler.tensorboard_trace_handler(str(self._folder), analyse_flag=self._analysis)
        handler(recording)
