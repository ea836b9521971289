"""torch's memory snapshots: files for PyTorch's memory viewer (pytorch.org/memory_viz)."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch

from burnish.errors import UserError
from burnish.profiling.plan import RoleProfile

SUFFIX = ".pickle"  # the viewer's format


SFT_KEY = "profiler.tool"  # the only job whose tool is chosen for one role


class MemoryProfiler:
    """Records allocations of the CUDA caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stack_depth = 0

    @staticmethod
    def check(device: torch.device, profile: RoleProfile) -> None:
        if device.type != "cuda":
            tool = SFT_KEY if profile.key == SFT_KEY else "global_profiler.tool"
            raise UserError(
                f"torch's memory snapshots require a CUDA device; this run uses the {device.type}",
                key=profile.key,
                value="torch_memory",
                hint=f"{tool}=torch, with contents=[cpu,memory]",
            )

    def start(self, profiles: Sequence[RoleProfile]) -> None:
        """Several roles of a process: the larger number of entries and the deeper stack."""
        options = [profile.memory for profile in profiles]
        self._stack_depth = max(option.stack_depth for option in options)
        torch.cuda.memory._record_memory_history(
            context=options[0].context,
            stacks=options[0].stacks,
            max_entries=max(option.max_entries for option in options),
            **options[0].kwargs,
        )

    def stop(self, paths: Sequence[Path]) -> list[Path]:
        files = [path.with_name(path.name + SUFFIX) for path in paths]
        snapshot = cast(dict[str, Any], torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)
        cut_stacks(snapshot, self._stack_depth)
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
        with files[0].open("wb") as opened:
            pickle.dump(snapshot, opened)
        for file in files[1:]:
            shutil.copyfile(files[0], file)
        return files

    def label(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()


def cut_stacks(snapshot: dict[str, Any], depth: int) -> None:
    """Keep the innermost frames of every allocation; torch itself records them all."""
    traces = [event for trace in snapshot.get("device_traces", ()) for event in trace]
    segments = snapshot.get("segments", ())
    blocks = [block for segment in segments for block in segment.get("blocks", ())]
    for entry in (*traces, *segments, *blocks):
        if len(entry.get("frames", ())) > depth:
            entry["frames"] = entry["frames"][:depth]
