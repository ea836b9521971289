"""TrainConfig: the whole tree of `burnish train`."""

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
    """Policy and engine share devices."""

    nccl_timeout: int = at_least(600, 1)
    """Seconds before a collective call gives up."""


@dataclass
class TrainConfig:
    """Everything that `burnish train` can be told."""

    data: DataConfig = section(DataConfig)
    """Prompts: files, columns, lengths, order."""

    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    """The policy: its model, its update, its engine, its reference."""

    critic: CriticConfig = section(CriticConfig)
    """The value model and its update."""

    reward: RewardConfig = section(RewardConfig)
    """The worker processes that run reward functions."""

    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    """A reward function of your own."""

    reward_model: RewardModelConfig = section(RewardModelConfig)
    """A model that scores responses, and the manager of all rewards."""

    sandbox: ProgramsConfig = section(ProgramsConfig)
    """How programs that a model wrote are run."""

    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    """How scores become advantages."""

    trainer: TrainerConfig = section(TrainerConfig)
    """How long, where, what to save and to say."""

    ray_init: RayInitConfig = section(RayInitConfig)
    """Ray."""

    rollout: RolloutPoolConfig = section(RolloutPoolConfig)
    """Devices of the engine where it has its own."""

    async_training: AsyncTrainingConfig = section(AsyncTrainingConfig)
    """Generation and training side by side."""

    global_profiler: GlobalProfilerConfig = section(GlobalProfilerConfig)
    """Profiling of the whole run."""

    transfer_queue: TransferQueueConfig = section(TransferQueueConfig)
    """verl's data service between workers."""
