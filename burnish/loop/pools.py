"""Pools: groups of processes, and the roles that each holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algos.advantages import ADVANTAGES
from burnish.config.ranks import engine_size, has_engine_pool, has_reward_pool, num_ranks

if TYPE_CHECKING:
    import torch

    from burnish.config import TrainConfig


@dataclass(frozen=True)
class Pool:
    """Processes that hold the same roles, one per device."""

    name: str
    nodes: int
    per_node: int
    roles: tuple[str, ...]
    timeout: float = 600.0  # seconds that a collective of its ranks may take
    engine_size: int = 1  # ranks that share an engine

    @property
    def size(self) -> int:
        return self.nodes * self.per_node

    def worker_name(self, rank: int) -> str:
        return f"{self.name} rank {rank} of {self.size}"


def describe_pools(pools: list[Pool], device: torch.device) -> str:
    """Where each role runs, for the start of the run."""
    return "; ".join(f"{pool.name}: {pool.size} x {device.type} for {', '.join(pool.roles)}" for pool in pools)


def wants_critic(cfg: TrainConfig) -> bool:
    needed = "values" in ADVANTAGES[cfg.algorithm.adv_estimator].needs
    return needed if cfg.critic.enable is None else cfg.critic.enable


def wants_reference(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward


def wants_reward_model(cfg: TrainConfig) -> bool:
    """Whether the run loads a reward model; a class of the user stays with the controller."""
    return cfg.reward_model.enable and not cfg.reward_model.model.custom_cls.path


def engines_alone(roles: tuple[str, ...], engine_size: int) -> bool:
    """Whether the ranks of a pool with these roles are engines that do not need each other: one may be lost."""
    return roles == ("engine",) and engine_size == 1


def pools(cfg: TrainConfig) -> list[Pool]:
    """Roles share the policy's devices unless they have their own; [] where the run is a single process."""
    wanted = {
        "policy": True,
        "critic": wants_critic(cfg),
        "reference": wants_reference(cfg),
        "reward_model": wants_reward_model(cfg),
        "engine": True,
    }
    reward_model, timeout = cfg.reward_model, cfg.actor_rollout_ref.nccl_timeout
    separate: list[Pool] = []
    if has_engine_pool(cfg):
        nodes, per_node = cfg.rollout.nnodes, cfg.rollout.n_gpus_per_node
        separate.append(Pool("rollout", nodes, per_node, ("engine",), timeout, engine_size(cfg)))
    if wanted["reward_model"] and has_reward_pool(cfg):
        nodes, per_node = reward_model.nnodes, reward_model.n_gpus_per_node
        separate.append(Pool("reward", nodes, per_node, ("reward_model",), reward_model.nccl_timeout))
    placed = {role for pool in separate for role in pool.roles}
    shared = tuple(role for role, is_wanted in wanted.items() if is_wanted and role not in placed)
    if not separate and num_ranks(cfg) == 1:
        return []
    if wanted["critic"]:
        timeout = max(timeout, cfg.critic.nccl_timeout)
    if "reward_model" in shared:
        timeout = max(timeout, reward_model.nccl_timeout)
    return [Pool("trainer", cfg.trainer.nnodes, cfg.trainer.n_gpus_per_node, shared, timeout), *separate]
