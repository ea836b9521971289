"""Stand-in for verl.tools.geo3k_tool."""

from __future__ import annotations

from burnish.compat.shims.answer_tools import Geo3kTool

__all__ = [
    "Geo3kTool",
]
