"""TrainConfig: all keys of `burnish train`."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.actor import ActorConfig, RefConfig
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.critic import CriticConfig
from burnish.config.data import DataConfig
from burnish.config.fields import at_least, section
from burnish.config.model import ModelConfig
from burnish.config.profiler import GlobalProfilerConfig
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardModelConfig
from burnish.config.rollout import RolloutConfig
from burnish.config.sandbox import ProgramsConfig
from burnish.config.trainer import (
    AsyncTrainingConfig,
    RayInitConfig,
    RolloutPoolConfig,
    TrainerConfig,
    TransferQueueConfig,
)


@dataclass
class ActorRolloutRefConfig:
    """The policy: its model, its update, its engine, its reference."""

    model: ModelConfig = section(ModelConfig)
    """The model."""

    actor: ActorConfig = section(ActorConfig)
    """The policy's update."""

    ref: RefConfig = section(RefConfig)
    """The reference policy."""

    rollout: RolloutConfig = section(RolloutConfig)
    """The engine and how it samples."""

    hybrid_engine: bool = True
    """Policy and engines share devices; false gives the engines rollout.nnodes x rollout.n_gpus_per_node devices of
    their own. In a single process only async_training allows false, and they share its device all the same."""

    nccl_timeout: int = at_least(600, 1)
    """Timeout in seconds of collective operations."""


@dataclass
class TrainConfig:
    """All keys of `burnish train`."""

    data: DataConfig = section(DataConfig)
    """Prompts: files, columns, lengths, order."""

    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    """The policy: its model, its update, its engine, its reference."""

    critic: CriticConfig = section(CriticConfig)
    """The value model and its update."""

    reward: RewardConfig = section(RewardConfig)
    """Reward functions and the worker processes that run them."""

    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    """A user-defined reward function."""

    reward_model: RewardModelConfig = section(RewardModelConfig)
    """The reward model, and the reward manager."""

    sandbox: ProgramsConfig = section(ProgramsConfig)
    """Execution of model-generated programs."""

    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    """Advantage estimation."""

    trainer: TrainerConfig = section(TrainerConfig)
    """Length, devices, checkpoints and logging of the run."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray cluster."""

    rollout: RolloutPoolConfig = section(RolloutPoolConfig)
    """Device pool of the engines, for asynchronous training."""

    async_training: AsyncTrainingConfig = section(AsyncTrainingConfig)
    """Asynchronous training: overlap of generation and training."""

    global_profiler: GlobalProfilerConfig = section(GlobalProfilerConfig)
    """Profiling of the whole run."""

    transfer_queue: TransferQueueConfig = section(TransferQueueConfig)
    """verl's data service between workers."""
