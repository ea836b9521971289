"""REWARD_MANAGERS: ways to get from responses to scores, chosen by `reward_model.reward_manager`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings
from burnish.table import Table

REWARD_MANAGERS = Table("reward manager", key="reward_model.reward_manager")


@REWARD_MANAGERS.add("naive")
def naive(settings: RewardSettings, reward: Callable[..., Any] | None = None) -> Scorer:
    """One call of the reward function per response."""
    return Scorer(settings, reward)
