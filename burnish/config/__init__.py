"""Config: verl's key tree as typed, documented dataclasses; loading, rules, explanation. Imports no torch."""

from burnish.config.actor import ActorConfig, PolicyLossConfig, RefConfig
from burnish.config.algorithm import AlgorithmConfig, KlCtrlConfig
from burnish.config.critic import CriticConfig, CriticModelConfig
from burnish.config.data import DataConfig
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.config.jobs import JOBS, EvalConfig, GenerateConfig
from burnish.config.load import Loaded, load
from burnish.config.model import ModelConfig
from burnish.config.optim import CheckpointConfig, OptimConfig
from burnish.config.overrides import Overrides
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardModelConfig
from burnish.config.rollout import RolloutConfig, SamplingConfig, ValKwargsConfig
from burnish.config.root import ActorRolloutRefConfig, TrainConfig
from burnish.config.sft import SftConfig
from burnish.config.trainer import TrainerConfig

__all__ = [
    "JOBS",
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "CheckpointConfig",
    "CriticConfig",
    "CriticModelConfig",
    "CustomRewardFunctionConfig",
    "DataConfig",
    "EvalConfig",
    "FsdpConfig",
    "GenerateConfig",
    "KlCtrlConfig",
    "Loaded",
    "MegatronConfig",
    "ModelConfig",
    "OptimConfig",
    "Overrides",
    "PolicyLossConfig",
    "RefConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "SamplingConfig",
    "SftConfig",
    "TrainConfig",
    "TrainerConfig",
    "ValKwargsConfig",
    "load",
]
