"""*.profiler.* and global_profiler.*: time and memory profiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.fields import at_least, one_of, section, setting, spelled

TOOLS = ("nsys", "npu", "torch", "torch_memory")
SFT_TOOLS = ("torch", "torch_memory")  # of `burnish sft`
TORCH_CONTENTS = ("cpu", "cuda", "memory", "shapes", "stack", "module")
NPU_CONTENTS = ("npu", "cpu", "memory", "shapes", "module", "stack")
_GLOBAL_MEMORY = "global_profiler.global_tool_config.torch_memory"
LEVELS = ("level_none", "level0", "level1", "level2")


@dataclass
class NpuToolConfig:
    """Ascend's profiler."""

    contents: list[str] = one_of([], NPU_CONTENTS, comma_separated=True)
    """What to record; empty: what trainer.npu_profile.options says."""

    level: str = one_of(II("trainer.npu_profile.options.level"), LEVELS)
    """Detail level of Ascend's profiler."""

    analysis: bool = II("trainer.npu_profile.options.analysis")
    """Analyze the recording when it ends."""

    discrete: bool = False
    """A separate recording per task instead of one per step."""


@dataclass
class TorchToolConfig:
    """torch.profiler."""

    contents: list[str] = one_of([], TORCH_CONTENTS, comma_separated=True)
    """What to record; empty: operators on the CPU, and kernels where there is a GPU."""

    step_start: int = at_least(0, 0)
    """First mini-batch of an update to record. With this or step_end, the role's recording is these mini-batches."""

    step_end: int | None = at_least(None, 1)
    """Mini-batch at which to stop; null records until the end of the update."""


@dataclass
class TorchMemoryToolConfig:
    """torch's memory snapshots of one role."""

    trace_alloc_max_entries: int = at_least(II(f"{_GLOBAL_MEMORY}.trace_alloc_max_entries"), 1)
    """Maximum number of allocations in the memory snapshot."""

    stack_depth: int = at_least(II(f"{_GLOBAL_MEMORY}.stack_depth"), 1)
    """Stack frames written per allocation."""


@dataclass
class GlobalTorchMemoryConfig:
    """torch's memory snapshots, for the whole run."""

    trace_alloc_max_entries: int = at_least(100000, 1)
    """Maximum number of allocations in a memory snapshot of any role."""

    stack_depth: int = at_least(32, 1)
    """Stack frames written per allocation."""

    context: str = one_of("all", ("all", "alloc", "state"))
    """Which events record a stack."""

    stacks: str = one_of("all", ("all", "python"))
    """Which stacks to record."""

    kw_args: dict[str, Any] = setting({})
    """Further arguments of torch's memory recorder."""


@dataclass
class ToolConfig:
    """Settings of each profiling tool for one role."""

    npu: NpuToolConfig = section(NpuToolConfig)
    """Ascend's profiler."""

    torch: TorchToolConfig = section(TorchToolConfig)
    """torch.profiler."""

    torch_memory: TorchMemoryToolConfig = section(TorchMemoryToolConfig)
    """torch's memory snapshots."""


@dataclass
class ProfilerConfig:
    """Profiling of one role."""

    discrete: bool = False
    """A separate recording per phase of this role instead of one per step."""

    all_ranks: bool = False
    """Profile every rank of this role."""

    ranks: list[int] = setting([], low=0)
    """Ranks to profile when all_ranks is off."""

    enable: bool | None = setting(None, verl=False)
    """Profile this role; null: if all_ranks or ranks is set."""

    tool: str | None = one_of(II("global_profiler.tool"), TOOLS)
    """Profiling tool; null is nsys."""

    save_path: str | None = II("global_profiler.save_path")
    """Folder of the recordings."""

    tool_config: ToolConfig = section(ToolConfig)
    """Settings of each tool."""


@dataclass
class GlobalToolConfig:
    """Settings of each profiling tool for the whole run."""

    torch_memory: GlobalTorchMemoryConfig = section(GlobalTorchMemoryConfig)
    """torch's memory snapshots."""


@dataclass
class GlobalProfilerConfig:
    """Profiling of the whole run."""

    tool: str | None = one_of(None, TOOLS)
    """Profiling tool of all roles; null is nsys. trainer.profile_steps and the roles' profiler keys turn it on."""

    profile_continuous_steps: bool = False
    """One recording for consecutive profiled steps instead of one each."""

    save_path: str | None = setting(None, verl="outputs/profile")
    """Folder of the recordings; null is profile/ in the run folder."""

    global_tool_config: GlobalToolConfig = section(GlobalToolConfig)
    """Settings of each tool for the whole run."""


@dataclass
class ControllerNsightConfig:
    """Nsight Systems options of the controller process."""

    trace: str = "cuda,nvtx,cublas,ucx"
    """What Nsight Systems traces."""

    cuda_memory_usage: str = spelled("cuda-memory-usage", "true")
    """Record GPU memory use ("true" or "false", as text)."""

    cuda_graph_trace: str = spelled("cuda-graph-trace", "graph")
    """Trace CUDA graphs as a whole (graph) or by node."""


@dataclass
class WorkerNsightConfig(ControllerNsightConfig):
    """Nsight Systems options of the worker processes."""

    capture_range: str = spelled("capture-range", "cudaProfilerApi")
    """When to record: cudaProfilerApi records the profiled steps only."""

    capture_range_end: str | None = spelled("capture-range-end", None)
    """What to do at the end of a recording; null waits for the next one."""

    kill: str = "none"
    """Signal sent to the process when recording ends; none lets it continue."""


@dataclass
class NpuOptionsConfig:
    """Options of Ascend's profiler, as configured in verl 0.4."""

    save_path: str | None = setting(II("global_profiler.save_path"), verl="./profiler_data")
    """Folder of the recording."""

    level: str = one_of("level1", LEVELS)
    """Detail level."""

    with_memory: bool = False
    """Record memory."""

    record_shapes: bool = False
    """Record tensor shapes."""

    with_npu: bool = True
    """Record the NPU."""

    with_cpu: bool = True
    """Record the CPU."""

    with_module: bool = False
    """Record the module names."""

    with_stack: bool = False
    """Record Python stacks."""

    analysis: bool = True
    """Analyze the recording when it ends."""


@dataclass
class NpuProfileConfig:
    """Ascend's profiler, as configured in verl 0.4."""

    options: NpuOptionsConfig = section(NpuOptionsConfig)
    """Options of the recording."""
