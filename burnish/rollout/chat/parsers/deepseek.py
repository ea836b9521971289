"""deepseek: calls between special tokens, as DeepSeek V3, R1 and V3.1 write them.

V3 and R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, a line break, and the JSON in a ```json block. V3.1:
<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}. Both end with <｜tool▁call▁end｜>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from burnish.rollout.chat.tool_calls import (
    InvalidCall,
    ParsedTurn,
    ToolCall,
    as_object,
    json_at,
    skip_space,
    tagged_calls,
)

SECTION, END_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"
MAX_NAME = 256


class DeepseekParser:
    """Calls in sections of special tokens."""

    stop_tokens = ()

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        if SECTION not in text:
            return ParsedTurn(text.strip())
        parsed = tagged_calls(text, CALL, END_CALL, _read)
        return replace(parsed, content=parsed.content.replace(SECTION, "").replace(END_SECTION, "").strip())


def _read(text: str, start: int) -> tuple[ToolCall, int]:
    separator = text.find(SEPARATOR, start, start + MAX_NAME)
    if separator < 0:
        return ToolCall("", problem=f"expected the tool's name and {SEPARATOR}"), start
    name, position = text[start:separator].strip(), skip_space(text, separator + len(SEPARATOR))
    fence = -1
    if not text.startswith("{", position):
        fence = text.find(FENCE, position, position + MAX_NAME)
        if fence < 0:
            return ToolCall("", problem=f"expected the tool's name and a {FENCE}json block"), position
        name = text[position:fence].strip()
        position = text.find("{", fence, fence + MAX_NAME)
    try:
        arguments, position = json_at(text, max(position, separator))
    except InvalidCall as error:
        return ToolCall(name, problem=str(error)), separator
    if fence >= 0 and text.startswith(FENCE, skip_space(text, position)):
        position = skip_space(text, position) + len(FENCE)
    try:
        return ToolCall(name, as_object(arguments)), position
    except InvalidCall as error:
        return ToolCall(name, problem=str(error)), position
