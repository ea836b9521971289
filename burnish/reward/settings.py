"""RewardSettings: the settings of the reward package, from the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burnish.reward.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig


@dataclass(frozen=True)
class RewardSettings:
    """`custom_reward_function.*`, `reward.*` and the sandbox settings, as plain values."""

    path: str | None = None
    name: str = "compute_score"
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int = 2  # 0 runs the function in this process, without limits
    timeout: float = 10.0  # seconds per sample
    memory_mb: int = 4096  # per worker; 0 sets no limit
    on_error: str = "fallback"
    fallback_score: float = 0.0
    pass_env: tuple[str, ...] = ()  # names of secret environment variables to pass to workers
    isolate: bool | None = None  # run workers in namespaces; None means if the system supports it
    network: bool = True
    verifiers: tuple[str, ...] = ()
    verifier_weights: tuple[float, ...] = ()
    remote_url: tuple[str, ...] = ()
    remote_timeout: float = 180.0  # seconds per attempt
    remote_retries: int = 5  # attempts in total
    remote_wait: float = 1.0  # seconds between attempts
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    failure_threshold: float | None = 1.0  # share of failed samples that stops the run; None never stops it
    pool: Callable[..., Any] | None = None  # makes the pool of workers instead of WorkerPool, with its arguments
    log_path: str | None = None  # file for what functions print; None only logs it at debug level

    @staticmethod
    def of(
        function: CustomRewardFunctionConfig, reward: RewardConfig, sandbox: SandboxSettings | None = None
    ) -> RewardSettings:
        """From the config sections."""
        return RewardSettings(
            path=function.path,
            name=function.name or "compute_score",
            reward_kwargs=dict(function.reward_kwargs),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            memory_mb=reward.memory_mb,
            on_error=reward.on_error,
            fallback_score=reward.fallback_score,
            failure_threshold=reward.failure_threshold,
            pass_env=tuple(reward.pass_env),
            isolate=reward.isolate,
            network=reward.network,
            verifiers=tuple(reward.verifiers),
            verifier_weights=tuple(reward.verifier_weights),
            remote_url=tuple(reward.remote_url),
            remote_timeout=reward.remote_timeout,
            remote_retries=reward.remote_retries,
            remote_wait=reward.remote_wait,
            sandbox=sandbox or SandboxSettings(),
        )
