"""Stand-in for verl.workers.rollout.replica."""

from __future__ import annotations

from burnish.compat.shims.agent_loops import TokenOutput

__all__ = ["TokenOutput"]
