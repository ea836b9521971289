"""ProfilePlan: which steps, roles and ranks are profiled, and how."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.profiled import SECTIONS, tool_of

if TYPE_CHECKING:
    from burnish.config.profiler import GlobalTorchMemoryConfig, NpuOptionsConfig, ProfilerConfig, ToolConfig

FOLDER = "profile"  # of recordings, in the run folder

# Phases of the clock -> the role that computes in them. Others are the controller's.
PHASES = {
    "gen": "rollout",
    "update_weights": "rollout",
    "reward": "reward_model",
    "old_log_prob": "actor",
    "update_actor": "actor",
    "ref": "ref",
    "values": "critic",
    "update_critic": "critic",
}
UPDATES = {"actor": "update_actor", "critic": "update_critic"}  # the phases that have mini-batches


@dataclass(frozen=True)
class MemoryOptions:
    """Of torch's memory snapshots."""

    max_entries: int
    stack_depth: int
    context: str = "all"
    stacks: str = "all"
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NpuOptions:
    """Of Ascend's profiler."""

    contents: frozenset[str]
    level: str
    analysis: bool


@dataclass(frozen=True)
class RoleProfile:
    """How one role is profiled."""

    role: str
    tool: str
    folder: Path
    ranks: frozenset[int] | None = None  # None: all
    discrete: bool = False  # a recording per phase, not one per step
    contents: frozenset[str] = frozenset()  # of torch.profiler; empty: its default
    first_mini_batch: int = 0
    last_mini_batch: int | None = None  # exclusive
    memory: MemoryOptions = MemoryOptions(100_000, 32)
    npu: NpuOptions = NpuOptions(frozenset(), "level1", True)

    @property
    def key(self) -> str:
        """The config key that chooses the tool."""
        return f"{SECTIONS[self.role]}.profiler.tool" if self.role in SECTIONS else "profiler.tool"

    @property
    def has_mini_batch_range(self) -> bool:
        return self.role in UPDATES and (self.first_mini_batch > 0 or self.last_mini_batch is not None)

    def records(self, mini_batch: int) -> bool:
        last = self.last_mini_batch
        return self.first_mini_batch <= mini_batch and (last is None or mini_batch < last)


@dataclass(frozen=True)
class ProfilePlan:
    """The profiled steps and roles of a run, or of one of its processes."""

    steps: frozenset[int] = frozenset()
    continuous: bool = False  # consecutive steps make one recording
    roles: tuple[RoleProfile, ...] = ()

    def for_rank(self, roles: Collection[str], rank: int) -> ProfilePlan:
        """The part of a process that holds these roles."""
        here = [p for p in self.roles if p.role in roles and (p.ranks is None or rank in p.ranks)]
        return replace(self, roles=tuple(here))

    def ranks(self, roles: Collection[str], size: int) -> list[int]:
        """The profiled ranks among `size` processes that hold these roles."""
        return [rank for rank in range(size) if self.for_rank(roles, rank).roles]

    def tools(self) -> dict[str, list[RoleProfile]]:
        """The profiles of each tool."""
        by_tool: dict[str, list[RoleProfile]] = {}
        for profile in self.roles:
            by_tool.setdefault(profile.tool, []).append(profile)
        return by_tool

    def name_of(self, step: int) -> str:
        """The folder of a recording that starts at this step."""
        last = step
        while self.continuous and last + 1 in self.steps:
            last += 1
        return f"step_{step}" if last == step else f"steps_{step}-{last}"

    def continues(self, step: int) -> bool:
        """Whether the recording of this step goes on in the next one."""
        return self.continuous and step + 1 in self.steps


NO_PLAN = ProfilePlan()


def role_profile(
    role: str,
    section: ProfilerConfig,
    whole_run: GlobalTorchMemoryConfig,
    npu: NpuOptionsConfig,
    default_folder: Path,
) -> RoleProfile:
    """From a role's section and those of the whole run."""
    tools = section.tool_config
    tool, memory = tool_of(section), tools.torch_memory
    folder = npu.save_path if tool == "npu" and npu.save_path else section.save_path
    return RoleProfile(
        role=role,
        tool=tool,
        folder=default_folder if folder is None else Path(folder),
        ranks=None if section.all_ranks else frozenset(section.ranks),
        discrete=section.discrete or (tool == "npu" and tools.npu.discrete),
        contents=frozenset(tools.torch.contents),
        first_mini_batch=tools.torch.step_start,
        last_mini_batch=tools.torch.step_end,
        memory=MemoryOptions(
            memory.trace_alloc_max_entries,
            memory.stack_depth,
            whole_run.context,
            whole_run.stacks,
            dict(whole_run.kw_args),
        ),
        npu=NpuOptions(_npu_contents(tools, npu), tools.npu.level, tools.npu.analysis),
    )


def _npu_contents(tools: ToolConfig, npu: NpuOptionsConfig) -> frozenset[str]:
    flags = {
        "npu": npu.with_npu,
        "cpu": npu.with_cpu,
        "memory": npu.with_memory,
        "shapes": npu.record_shapes,
        "module": npu.with_module,
        "stack": npu.with_stack,
    }
    return frozenset(tools.npu.contents or [name for name, on in flags.items() if on])


def union(profiles: Sequence[RoleProfile]) -> frozenset[str]:
    """Everything that one of these roles wants torch.profiler to record."""
    return frozenset().union(*(profile.contents for profile in profiles))
