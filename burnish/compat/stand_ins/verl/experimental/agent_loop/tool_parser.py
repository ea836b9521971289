"""Stand-in for verl.experimental.agent_loop.tool_parser."""

from __future__ import annotations

from burnish.compat.shims.agent_loops import FunctionCall, ToolParser

__all__ = ["FunctionCall", "ToolParser"]
