"""llama3_json: a turn that is {"name": ..., "parameters": {...}}, or several of them with semicolons between.

Llama 3.1 to 3.3 and Llama 4 write it, at times after <|python_tag|>.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import (
    MAX_CALLS,
    InvalidCall,
    ParsedTurn,
    ToolCall,
    call_from,
    json_at,
    skip_space,
)

PYTHON_TAG = "<|python_tag|>"
LOOKS_LIKE_CALL = re.compile(r'\s*\{\s*"(name|type)"\s*:')


class Llama3JsonParser:
    """The calls are the whole turn: JSON elsewhere is an answer."""

    stop_tokens = ("<|eom_id|>",)  # "end of message": the model waits for a result

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        content, tag, rest = text.rpartition(PYTHON_TAG)
        if not tag and not LOOKS_LIKE_CALL.match(rest):
            return ParsedTurn(text.strip())
        calls: list[ToolCall] = []
        position = 0
        while position < len(rest) and len(calls) < MAX_CALLS:
            try:
                fields, position = json_at(rest, position)
                if not tag and not calls and not _has_arguments(fields):
                    return ParsedTurn(text.strip())
                calls.append(call_from(fields))
            except InvalidCall as error:
                calls.append(ToolCall("", problem=str(error)))
                break
            position = skip_space(rest, position)
            if not rest.startswith(";", position):
                break
            position = skip_space(rest, position + 1)
        return ParsedTurn(content.strip(), calls)


def _has_arguments(fields: Any) -> bool:
    """Whether this is a call, rather than an answer in JSON that has a name in it."""
    return isinstance(fields, dict) and ("parameters" in fields or "arguments" in fields)
