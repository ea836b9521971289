"""Stand-in for verl.tools.mcp_base_tool."""

from __future__ import annotations

from burnish.compat.shims.tools import MCPBaseTool

__all__ = [
    "MCPBaseTool",
]
