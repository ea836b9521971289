"""Cast: who plays a run's roles, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from burnish.loop.build_reward_model import build_reward_model_scorer
from burnish.loop.launch import launch
from burnish.loop.pools import Pool, pools, wants_critic, wants_reference
from burnish.loop.roles import build_critic, build_engine, build_policy, build_reference
from burnish.models.load import ModelSource
from burnish.reward.model_scorer import RewardModelScorer
from burnish.rollout.engine import Engine
from burnish.training.critic import Critic
from burnish.training.policy import Policy
from burnish.training.reference import Reference

if TYPE_CHECKING:
    from burnish.config import TrainConfig


@dataclass
class Cast:
    """The roles; handles have the methods of what they stand for. `close` ends the processes behind them."""

    policy: Policy
    engine: Engine
    critic: Critic | None
    reference: Reference | None
    reward_model: RewardModelScorer | None  # None leaves the scores to functions
    notices: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None
    break_off: Callable[[str, float], str] | None = None  # ends processes that hang; None where there are none


def find_cast(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    tokenizer: Any,
    reward: Callable[..., Any] | None,
    total_steps: int,
) -> Cast:
    """Every role built: here, where one process is all, else in the processes of the run's pools."""
    elsewhere = pools(cfg)
    if elsewhere:
        return _elsewhere(cfg, elsewhere, device, tokenizer, reward, total_steps)
    judge = build_reward_model_scorer(cfg, device, tokenizer, reward)
    policy = build_policy(cfg, source, device, total_steps)
    return Cast(
        policy=policy,
        engine=build_engine(cfg, source, device, policy.backend, tokenizer),
        critic=build_critic(cfg, device, total_steps) if wants_critic(cfg) else None,
        reference=build_reference(cfg, source, device, policy) if wants_reference(cfg) else None,
        reward_model=judge,
        notices=[] if judge is None else list(judge.notices),
    )


def _elsewhere(
    cfg: TrainConfig,
    asked: list[Pool],
    device: torch.device,
    tokenizer: Any,
    reward: Callable[..., Any] | None,
    total_steps: int,
) -> Cast:
    launched = launch(cfg, asked, total_steps)
    try:
        judge = build_reward_model_scorer(cfg, device, tokenizer, reward, launched.reward_model())
        places = "; ".join(f"{pool.name}: {pool.size} x {device.type} for {', '.join(pool.roles)}" for pool in asked)
        return Cast(
            policy=launched.policy(),
            engine=launched.engine(cfg),
            critic=launched.critic(),
            reference=launched.reference(),
            reward_model=judge,
            notices=[places, *launched.notices, *([] if judge is None else judge.notices)],
            close=launched.close,
            break_off=launched.break_off,
        )
    except BaseException:
        launched.close()
        raise
