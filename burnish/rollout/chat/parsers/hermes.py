"""hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes, Qwen2.5 and Qwen3 write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import ParsedTurn, read_json_call, tagged_calls


class HermesParser:
    """JSON between two tags."""

    stop_tokens = ()
    closing_tag = "</tool_call>"

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        return tagged_calls(text, "<tool_call>", "</tool_call>", read_json_call)
