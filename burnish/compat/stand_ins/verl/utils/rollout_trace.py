"""Stand-in for verl.utils.rollout_trace."""

from __future__ import annotations

from burnish.compat.shims.tools import rollout_trace_op

__all__ = [
    "rollout_trace_op",
]
