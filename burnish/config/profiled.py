"""Which roles a run profiles, and with which tool."""

from __future__ import annotations

from collections.abc import Callable

from burnish.config.profiler import ProfilerConfig
from burnish.config.root import TrainConfig

DEFAULT_TOOL = "nsys"  # of verl, before it had others

# Name of the role in recordings -> section of the config.
SECTIONS: dict[str, str] = {
    "actor": "actor_rollout_ref.actor",
    "rollout": "actor_rollout_ref.rollout",
    "ref": "actor_rollout_ref.ref",
    "critic": "critic",
    "reward_model": "reward_model",
}
_PROFILERS: dict[str, Callable[[TrainConfig], ProfilerConfig]] = {
    "actor": lambda cfg: cfg.actor_rollout_ref.actor.profiler,
    "rollout": lambda cfg: cfg.actor_rollout_ref.rollout.profiler,
    "ref": lambda cfg: cfg.actor_rollout_ref.ref.profiler,
    "critic": lambda cfg: cfg.critic.profiler,
    "reward_model": lambda cfg: cfg.reward_model.profiler,
}


def profiled_roles(cfg: TrainConfig) -> dict[str, ProfilerConfig]:
    """The roles that are profiled, by name; empty where no step is."""
    if not cfg.trainer.profile_steps:
        return {}
    sections = {role: section(cfg) for role, section in _PROFILERS.items()}
    return {role: section for role, section in sections.items() if _is_on(section)}


def tool_of(section: ProfilerConfig) -> str:
    return section.tool or DEFAULT_TOOL


def uses_tool(cfg: TrainConfig, tool: str) -> bool:
    return any(tool_of(section) == tool for section in profiled_roles(cfg).values())


def without_tool(tool: str) -> Callable[[TrainConfig], bool]:
    return lambda cfg: not uses_tool(cfg, tool)


def profiles_no_step(cfg: TrainConfig) -> bool:
    return not cfg.trainer.profile_steps


def profiles_no_role(cfg: TrainConfig) -> bool:
    return not profiled_roles(cfg)


def _is_on(section: ProfilerConfig) -> bool:
    has_ranks = section.all_ranks or bool(section.ranks)
    return has_ranks and section.enable is not False
