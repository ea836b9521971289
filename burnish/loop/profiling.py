"""Profilers of a run, from its config. Importing this loads no torch: a command may have to start again under nsys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.profiled import profiled_roles, uses_tool
from burnish.config.ranks import is_single_process
from burnish.log.clock import Clock
from burnish.profiling import nsight
from burnish.profiling.plan import FOLDER, NO_PLAN, ProfilePlan, role_profile
from burnish.profiling.process import ProcessProfiler
from burnish.profiling.run import RunProfiler, Target, remote_targets
from burnish.profiling.tools import PROFILERS

if TYPE_CHECKING:
    import torch

    from burnish.config import TrainConfig
    from burnish.distributed.worker_group import WorkerGroup

# Roles of the loop -> roles of recordings.
ROLES = {
    "policy": "actor",
    "engine": "rollout",
    "reference": "ref",
    "critic": "critic",
    "reward_model": "reward_model",
}


def profile_plan(cfg: TrainConfig) -> ProfilePlan:
    roles = profiled_roles(cfg)
    if not roles:
        return NO_PLAN
    folder = Path(cfg.trainer.default_local_dir) / FOLDER
    memory, npu = cfg.global_profiler.global_tool_config.torch_memory, cfg.trainer.npu_profile.options
    return ProfilePlan(
        frozenset(cfg.trainer.profile_steps or ()),
        cfg.global_profiler.profile_continuous_steps,
        tuple(role_profile(role, section, memory, npu, folder) for role, section in roles.items()),
    )


def check_profiling(cfg: TrainConfig, device: torch.device) -> None:
    """UserError, before models are loaded, where this machine lacks a tool."""
    for profile in profile_plan(cfg).roles:
        PROFILERS[profile.tool].load().check(device, profile)
        if profile.tool == nsight.PROGRAM:
            nsight.check_recorded(profile.key, nsys_command(cfg, ["python", *sys.argv]))


def process_profiler(cfg: TrainConfig, roles: Sequence[str], rank: int, device: torch.device) -> ProcessProfiler:
    """Of a process that holds these roles of the loop."""
    plan = profile_plan(cfg).for_rank([ROLES[role] for role in roles], rank)
    return ProcessProfiler(plan, rank, device)


def run_profiler(
    cfg: TrainConfig,
    roles: Mapping[str, Any],
    groups: Mapping[str, WorkerGroup],
    device: torch.device,
    note: Callable[[str], None],
    clock: Clock,
) -> RunProfiler:
    """Follows the clock. `roles` are those of this process; where workers hold them, `groups` has the workers."""
    plan = profile_plan(cfg)
    if not plan.roles:
        return RunProfiler()
    if groups:
        by_role = {ROLES[role]: group for role, group in groups.items()}
        targets: list[Target] = [*remote_targets(plan, by_role)]
    else:
        local = process_profiler(cfg, list(roles), 0, device)
        watch_mini_batches(roles, local)
        targets = [local]
    profiler = RunProfiler(plan, targets, note)
    clock.observe, clock.in_turn = profiler.phase, lambda: profiler.active
    return profiler


def watch_mini_batches(roles: Mapping[str, Any], profiler: ProcessProfiler) -> None:
    """Let a profiler see the mini-batches of trained roles."""
    for role in ("policy", "critic"):
        if role in roles:
            roles[role].on_mini_batch = partial(profiler.mini_batch, ROLES[role])


# Nsight Systems


def start_under_nsys(cfg: TrainConfig, words: Sequence[str]) -> None:
    """Start this command again under nsys if the run is profiled with it. Does not return then."""
    if not uses_tool(cfg, nsight.PROGRAM):
        return
    if nsight.is_recorded():
        nsight.release_children()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return  # torchrun started this process; `check_profiling` says how to do that under nsys
    for profile in profile_plan(cfg).roles:
        if profile.tool == nsight.PROGRAM:
            nsight.check_installed(profile.key)
    nsight.replace_process(nsys_command(cfg, words))


def nsys_command(cfg: TrainConfig, words: Sequence[str]) -> list[str]:
    """The controller's command under nsys. A single process does the work of a worker and has its options."""
    plan, trainer = profile_plan(cfg), cfg.trainer
    roles = [profile for profile in plan.roles if profile.tool == nsight.PROGRAM]
    if is_single_process(cfg):
        name = f"{'+'.join(profile.role for profile in roles)}.rank_0"
        return nsight.command(nsight.worker_flags(trainer.worker_nsight_options), roles[0].folder / name, words)
    return nsight.command(
        nsight.controller_flags(trainer.controller_nsight_options), roles[0].folder / "controller", words
    )


def worker_flags(cfg: TrainConfig, roles: Sequence[str], rank: int) -> tuple[dict[str, str], Path] | None:
    """The options of a worker's nsys and the name of its reports; None where it has none."""
    profiles = profile_plan(cfg).for_rank([ROLES[role] for role in roles], rank).tools().get(nsight.PROGRAM)
    if not profiles:
        return None
    name = f"{'+'.join(profile.role for profile in profiles)}.rank_{rank}"
    return nsight.worker_flags(cfg.trainer.worker_nsight_options), profiles[0].folder / name


def worker_command(cfg: TrainConfig, roles: Sequence[str], rank: int, words: list[str]) -> list[str]:
    """The command of a local worker."""
    flags = worker_flags(cfg, roles, rank)
    return words if flags is None else nsight.command(*flags, words)


def worker_environment(cfg: TrainConfig, roles: Sequence[str], rank: int) -> dict[str, Any]:
    """The runtime environment of a Ray worker: Ray starts it under nsys."""
    flags = worker_flags(cfg, roles, rank)
    return {} if flags is None else {"nsight": {**flags[0], "o": str(flags[1].absolute())}}
