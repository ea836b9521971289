"""Stand-in for verl.tools.function_tool."""

from __future__ import annotations

from burnish.compat.shims.tools import (
    FUNCTION_TOOL_REGISTRY,
    FUNCTION_TOOLS,
    FunctionTool,
    function_tool,
    get_function_tool,
)

__all__ = [
    "FUNCTION_TOOLS",
    "FUNCTION_TOOL_REGISTRY",
    "FunctionTool",
    "function_tool",
    "get_function_tool",
]
