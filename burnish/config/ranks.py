"""Process counts and parallel sizes that follow from a config."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from burnish.config.jobs import GenerateConfig
from burnish.config.root import TrainConfig
from burnish.config.sft import SftConfig


def num_ranks(cfg: TrainConfig | SftConfig | GenerateConfig) -> int:
    """Training processes of the run; of `burnish generate`, its engines."""
    return cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node


def num_role_ranks(cfg: TrainConfig, role: Any) -> int:
    """Processes of a role: those of the run, or those of the reward model's own pool."""
    if role is cfg.reward_model and role.enable_resource_pool:
        return role.nnodes * role.n_gpus_per_node
    return num_ranks(cfg)


def has_engine_pool(cfg: TrainConfig) -> bool:
    """Whether the engines have devices of their own."""
    return not cfg.actor_rollout_ref.hybrid_engine and cfg.rollout.nnodes * cfg.rollout.n_gpus_per_node > 0


def has_reward_pool(cfg: TrainConfig) -> bool:
    """Whether the reward model has devices of its own."""
    role = cfg.reward_model
    return role.enable and role.enable_resource_pool and role.nnodes * role.n_gpus_per_node > 0


def num_nodes(cfg: TrainConfig) -> int:
    """Machines of the largest pool."""
    engine_nodes = cfg.rollout.nnodes if has_engine_pool(cfg) else 0
    reward_nodes = cfg.reward_model.nnodes if has_reward_pool(cfg) else 0
    return max(cfg.trainer.nnodes, engine_nodes, reward_nodes)


def engine_size(cfg: TrainConfig) -> int:
    """Neighboring ranks that share one engine, or whose devices its server uses."""
    rollout = cfg.actor_rollout_ref.rollout
    size = ENGINE_SIZES.get(rollout.name)
    return 1 if size is None or is_single_process(cfg) else size(rollout)


def _builtin_size(rollout: Any) -> int:
    return rollout.tensor_model_parallel_size


def _vllm_size(rollout: Any) -> int:
    if rollout.engine_kwargs.vllm.get("base_url"):
        return 1  # a running server has devices of its own
    return rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size * rollout.data_parallel_size


def _sglang_size(rollout: Any) -> int:
    given = rollout.engine_kwargs.sglang
    if given.get("base_url"):
        return 1
    sizes = rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size
    # With data-parallel attention, the tensor ranks are also its data ranks.
    return sizes if given.get("enable_dp_attention") else sizes * rollout.data_parallel_size


# Keys of a rollout section that spread one engine over devices.
PARALLEL_SIZES = (
    *("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size"),
    "pipeline_model_parallel_size",
)
# Devices of one engine, by the engine's name. Others (hf, a user's own) have one.
ENGINE_SIZES: dict[str, Callable[[Any], int]] = {
    "builtin": _builtin_size,
    "vllm": _vllm_size,
    "sglang": _sglang_size,
}


def engine_devices(cfg: TrainConfig) -> tuple[int, int]:
    """Nodes of the engines, and devices of each."""
    pool = cfg.rollout if has_engine_pool(cfg) else cfg.trainer
    return pool.nnodes, pool.n_gpus_per_node


def largest_pool(cfg: TrainConfig) -> int:
    """Devices of the training ranks or of the engines, whichever are more."""
    nodes, per_node = engine_devices(cfg)
    return max(num_ranks(cfg), nodes * per_node)


def is_single_process(cfg: TrainConfig | SftConfig | GenerateConfig) -> bool:
    """Whether one process trains, generates and scores."""
    has_pool = isinstance(cfg, TrainConfig) and (has_engine_pool(cfg) or has_reward_pool(cfg))
    return num_ranks(cfg) == 1 and not has_pool


def data_parallel_size(cfg: TrainConfig, role: Any) -> int:
    """Groups of ranks that process different sequences of this role."""
    sizes = (sequence_parallel_size(role), tensor_parallel_size(role), pipeline_parallel_size(role))
    return max(1, num_ranks(cfg) // math.prod(sizes))


def sft_data_size(cfg: SftConfig) -> int:
    """Groups of ranks that process different examples."""
    return max(1, num_ranks(cfg) // cfg.ulysses_sequence_parallel_size)


def sft_micro_batch_size(cfg: SftConfig) -> int:
    """Examples of a micro-batch on one rank; data.micro_batch_size counts those of all ranks."""
    total = cfg.data.micro_batch_size
    return cfg.data.micro_batch_size_per_gpu if total is None else max(1, total // sft_data_size(cfg))


def uses_megatron(role: Any) -> bool:
    """Whether Megatron's keys set the role's parallel sizes."""
    return role.strategy == "megatron"


def sequence_parallel_size(role: Any) -> int:
    """Ranks that share one sequence of this role."""
    return role.megatron.context_parallel_size if uses_megatron(role) else role.ulysses_sequence_parallel_size


def tensor_parallel_size(role: Any) -> int:
    """Ranks that share the weight matrices of this role."""
    return role.megatron.tensor_model_parallel_size if uses_megatron(role) else 1


def pipeline_parallel_size(role: Any) -> int:
    """Ranks that hold different layers of this role."""
    return role.megatron.pipeline_model_parallel_size if uses_megatron(role) else 1


def virtual_pipeline_size(role: Any) -> int:
    """Chunks of layers on each of those ranks."""
    return role.megatron.virtual_pipeline_model_parallel_size or 1 if pipeline_parallel_size(role) > 1 else 1


def expert_parallel_size(role: Any) -> int:
    """Ranks that hold different experts of this role, each with its tensor ranks, which share its experts.

    Megatron divides the matrices of an expert over expert_tensor_parallel_size ranks (null: the tensor-parallel size);
    here these hold different experts instead.
    """
    if not uses_megatron(role):
        return 1
    megatron = role.megatron
    tensor = megatron.tensor_model_parallel_size
    return max(1, megatron.expert_model_parallel_size * (megatron.expert_tensor_parallel_size or tensor) // tensor)
