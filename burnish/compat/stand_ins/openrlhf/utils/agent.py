"""Stand-in for openrlhf.utils.agent."""

from __future__ import annotations

from burnish.compat.shims.agents import (
    AgentExecutorBase,
    AgentInstanceBase,
    MultiTurnAgentExecutor,
)

__all__ = [
    "AgentExecutorBase",
    "AgentInstanceBase",
    "MultiTurnAgentExecutor",
]
