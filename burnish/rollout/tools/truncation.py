"""ResponseLimit: how much of a tool's response the model is given."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.registry import Registry

TRUNCATE_SIDES = Registry("side", key="actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side")


@dataclass(frozen=True)
class ResponseLimit:
    """A number of characters, and which part of a longer response is removed. The marker comes on top."""

    max_characters: int | None = None
    side: str = "middle"

    def cut(self, text: str) -> str:
        if self.max_characters is None or len(text) <= self.max_characters:
            return text
        return TRUNCATE_SIDES[self.side].load()(text, self.max_characters)


NO_LIMIT = ResponseLimit()


@TRUNCATE_SIDES.register("left")
def cut_head(text: str, length: int) -> str:
    """Remove the beginning."""
    return "(truncated)..." + text[len(text) - length :]


@TRUNCATE_SIDES.register("right")
def cut_tail(text: str, length: int) -> str:
    """Remove the end."""
    return text[:length] + "...(truncated)"


@TRUNCATE_SIDES.register("middle")
def cut_middle(text: str, length: int) -> str:
    """Remove the middle: half of the length is kept at either end."""
    half = length // 2
    return text[:half] + "...(truncated)..." + text[len(text) - half :]
