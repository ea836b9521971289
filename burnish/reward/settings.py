"""RewardSettings: what the reward room needs to know of the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig


@dataclass(frozen=True)
class RewardSettings:
    """`custom_reward_function.*` and `reward.*`, as plain values."""

    path: str | None = None
    name: str = "compute_score"
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int = 2  # 0 runs the function in this process, without limits
    timeout: float = 10.0  # seconds per sample
    memory_mb: int = 2048  # per worker; 0 sets no limit
    on_error: str = "fallback"
    fallback_score: float = 0.0
    pass_env: tuple[str, ...] = ()  # names of secrets that the reward function may see after all

    @staticmethod
    def of(function: CustomRewardFunctionConfig, reward: RewardConfig) -> RewardSettings:
        """From the two config sections."""
        return RewardSettings(
            path=function.path,
            name=function.name or "compute_score",
            reward_kwargs=dict(function.reward_kwargs),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            memory_mb=reward.memory_mb,
            on_error=reward.on_error,
            fallback_score=reward.fallback_score,
            pass_env=tuple(reward.pass_env),
        )
