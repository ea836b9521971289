"""Stand-in for verl.experimental.agent_loop.agent_loop."""

from __future__ import annotations

from burnish.compat.shims.agent_loops import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    _agent_loop_registry,  # noqa: F401
    register,
)

__all__ = ["AgentLoopBase", "AgentLoopMetrics", "AgentLoopOutput", "register"]
