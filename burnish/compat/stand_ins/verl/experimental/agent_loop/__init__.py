"""Stand-in for verl.experimental.agent_loop."""

from __future__ import annotations

from .agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

__all__ = ["AgentLoopBase", "AgentLoopMetrics", "AgentLoopOutput", "register"]
