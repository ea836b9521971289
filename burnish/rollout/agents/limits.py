"""Limits of a conversation's turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.rollout.engine import Sampling


@dataclass(frozen=True)
class TurnLimits:
    """When a conversation ends besides by its token budget. None: no limit."""

    max_assistant_turns: int | None = None
    max_user_turns: int | None = None  # tool results and replies of simulated users
    max_parallel_calls: int | None = 1
    max_interaction_turns: int | None = None  # replies of simulated users alone
    max_turn_length: int | None = None  # tokens of an assistant turn

    def of_turn(self, sampling: Sampling) -> dict[str, Any]:
        """Fields of a turn's sampling that limit its length, where that of the trajectory is not shorter."""
        limit = self.max_turn_length
        if limit is None or limit >= sampling.max_tokens:
            return {}
        return {"max_tokens": limit, "min_tokens": min(sampling.min_tokens, limit)}


def reached(limit: int | None, count: int) -> bool:
    return limit is not None and count >= limit
