"""Stand-in for verl.utils.profiler."""

from __future__ import annotations

from burnish.compat.shims.agent_loops import simple_timer

marked_timer = simple_timer

__all__ = ["marked_timer", "simple_timer"]
