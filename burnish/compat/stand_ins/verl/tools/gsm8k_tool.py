"""Stand-in for verl.tools.gsm8k_tool."""

from __future__ import annotations

from burnish.compat.shims.answer_tools import Gsm8kTool

__all__ = [
    "Gsm8kTool",
]
