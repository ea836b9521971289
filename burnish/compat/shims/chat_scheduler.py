"""verl.workers.rollout.chat_scheduler: base classes of users' completion callbacks (verl 0.4)."""

from __future__ import annotations

from typing import Any


class CompletionCallback:
    """Called after each turn: `await self(messages, completions, info)`; see docs/agents.md."""

    def __init__(self, config: Any, scheduler: Any) -> None:
        turns = config.actor_rollout_ref.rollout.multi_turn
        self.config = config
        self.scheduler = scheduler
        self.tokenizer = scheduler.tokenizer
        self.max_assistant_turns = turns.max_assistant_turns
        self.max_user_turns = turns.max_user_turns

    @property
    def tool_schemas(self) -> list[dict[str, Any]] | None:
        """Tools that the prompt shows: those of the run."""
        return self.scheduler.tool_schemas

    @property
    def extra_body(self) -> dict[str, Any] | None:
        """Sampling parameters besides the run's."""
        return None

    async def __call__(self, messages: list[dict[str, Any]], completions: Any, info: dict[str, Any]) -> None:
        raise NotImplementedError("without a callback of your own, tools of tool_config_path are called anyway")

    def postprocess(self, *args: Any, **kwargs: Any) -> Any:
        """Never called: tokens are kept as they were sampled."""
        raise NotImplementedError


class ToolCompletionCallback(CompletionCallback):
    """verl's default, as a base class."""


class ChatCompletionScheduler:
    """For type hints."""
