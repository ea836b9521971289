"""Stand-in for verl.workers.rollout.chat_scheduler."""

from __future__ import annotations

from burnish.compat.shims.chat_scheduler import ChatCompletionScheduler, CompletionCallback, ToolCompletionCallback

__all__ = ["ChatCompletionScheduler", "CompletionCallback", "ToolCompletionCallback"]
