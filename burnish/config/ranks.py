"""How many processes train, and how many of them see rows of their own."""

from __future__ import annotations

from typing import Any

from burnish.config.root import TrainConfig


def ranks(cfg: TrainConfig) -> int:
    """Training processes of the run."""
    return cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node


def ranks_of(cfg: TrainConfig, role: Any) -> int:
    """Those of the run; a reward model may have its own."""
    if role is cfg.reward_model and role.enable_resource_pool:
        return role.nnodes * role.n_gpus_per_node
    return ranks(cfg)


def engine_pool(cfg: TrainConfig) -> bool:
    """Do the engines have devices of their own?"""
    return not cfg.actor_rollout_ref.hybrid_engine and cfg.rollout.nnodes * cfg.rollout.n_gpus_per_node > 0


def reward_pool(cfg: TrainConfig) -> bool:
    """Does the reward model?"""
    own = cfg.reward_model
    return own.enable and own.enable_resource_pool and own.nnodes * own.n_gpus_per_node > 0


def machines(cfg: TrainConfig) -> int:
    """Of the pool that has most of them."""
    apart = (cfg.rollout.nnodes if engine_pool(cfg) else 0, cfg.reward_model.nnodes if reward_pool(cfg) else 0)
    return max(cfg.trainer.nnodes, *apart)


def alone(cfg: TrainConfig) -> bool:
    """Is one process all?"""
    return ranks(cfg) == 1 and not engine_pool(cfg) and not reward_pool(cfg)


def data_ranks(cfg: TrainConfig, role: Any) -> int:
    """Ranks that see different rows: those of the run, less those that share a row of this role between them."""
    stages = role.megatron.pipeline_model_parallel_size if uses_megatron(role) else 1
    return max(1, ranks(cfg) // (sequence_ranks(role) * tensor_ranks(role) * stages))


def uses_megatron(role: Any) -> bool:
    """Is the role spread by Megatron's keys?"""
    return role.strategy == "megatron"


def sequence_ranks(role: Any) -> int:
    """Ranks that share one row of this role."""
    return role.megatron.context_parallel_size if uses_megatron(role) else role.ulysses_sequence_parallel_size


def tensor_ranks(role: Any) -> int:
    """Ranks that share one layer's matrices of this role."""
    return role.megatron.tensor_model_parallel_size if uses_megatron(role) else 1
