"""Nsight Systems: the command lines that start processes under `nsys`, and what a process does under it.

`nsys` records a process from its start. Between the two calls of CUDA's profiler API (capture-range=cudaProfilerApi) it
keeps what happens: the profiled steps. Phases are NVTX ranges.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.errors import UserError

if TYPE_CHECKING:
    import torch

    from burnish.config.profiler import ControllerNsightConfig, WorkerNsightConfig
    from burnish.profiling.plan import RoleProfile

PROGRAM = "nsys"
STARTED = "BURNISH_UNDER_NSYS"  # set for a process that we started under nsys
SESSION = "NSYS_PROFILING_SESSION_ID"  # set by nsys
# By these, child processes of a recorded process would be recorded too.
INJECTION = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")
REPEAT = "repeat"  # wait for the next recording; counting recordings would end the process at a wrong count


class NsightProfiler:
    """Marks the recordings; nsys writes them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @staticmethod
    def check(device: torch.device, profile: RoleProfile) -> None:
        check_installed(profile.key)
        if device.type != "cuda":
            raise UserError(
                f"Nsight Systems records CUDA devices; this run uses the {device.type}",
                key=profile.key,
                value=PROGRAM,
                hint="global_profiler.tool=torch",
            )

    def start(self, profiles: Sequence[RoleProfile]) -> None:
        import torch

        torch.cuda.profiler.start()

    def stop(self, paths: Sequence[Path]) -> list[Path]:
        import torch

        torch.cuda.profiler.stop()
        return []  # nsys names and writes its reports by itself

    def label(self, name: str) -> AbstractContextManager[object]:
        return nvtx_range(name)


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A range of the process, not of the thread: phases of two threads may overlap."""
    import torch

    handle = torch.cuda.nvtx.range_start(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_end(handle)


def controller_flags(options: ControllerNsightConfig) -> dict[str, str]:
    """The options of `nsys profile`, without dashes."""
    return {
        "trace": options.trace,
        "cuda-memory-usage": options.cuda_memory_usage,
        "cuda-graph-trace": options.cuda_graph_trace,
    }


def worker_flags(options: WorkerNsightConfig) -> dict[str, str]:
    """The same of a process that computes."""
    return controller_flags(options) | {
        "capture-range": options.capture_range,
        "capture-range-end": REPEAT if options.capture_range_end is None else options.capture_range_end,
        "kill": options.kill,
    }


def command(flags: dict[str, str], output: Path, words: Sequence[str]) -> list[str]:
    """This command, recorded."""
    options = [f"--{name}={value}" for name, value in flags.items()]
    return [PROGRAM, "profile", *options, "--force-overwrite=true", f"--output={output}", *words]


def is_recorded() -> bool:
    """Whether this process runs under nsys."""
    return STARTED in os.environ or SESSION in os.environ


def check_installed(key: str) -> None:
    if shutil.which(PROGRAM) is None:
        raise UserError(
            "Nsight Systems is not installed: there is no program `nsys` in PATH",
            key=key,
            value=PROGRAM,
            hint="install it (developer.nvidia.com/nsight-systems), or global_profiler.tool=torch",
        )


def check_recorded(key: str, recording: Sequence[str]) -> None:
    """UserError in a process that was not started under nsys, for example a script that calls burnish.train."""
    if not is_recorded():
        raise UserError(
            "this process does not run under nsys, which must start it",
            key=key,
            value=PROGRAM,
            hint=f"burnish train ..., which does that by itself; or {shlex.join(recording)}",
        )


def replace_process(words: Sequence[str]) -> None:
    """Become this command. It finds that it runs under nsys."""
    os.execvpe(words[0], list(words), {**os.environ, STARTED: "1"})


def release_children() -> None:
    """Keep nsys out of the processes that this one will start: workers have an nsys of their own, others none."""
    for name in INJECTION:
        os.environ.pop(name, None)
