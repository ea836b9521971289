"""mistral: [TOOL_CALLS] before a JSON list of calls, or before each NAME[ARGS]{...}.

Up to tokenizer version 7 it is [TOOL_CALLS] [{"name": ..., "arguments": {...}}]; from version 11
[TOOL_CALLS]NAME[ARGS]{...}, some with [CALL_ID]ID before [ARGS], some without [ARGS].
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
    as_object,
    call_from,
    json_at,
    skip_space,
)

CALLS = "[TOOL_CALLS]"
NAME = re.compile(r"([\w.-]{1,256})\s*+(?:\[CALL_ID\]\s*+(\w{1,64})\s*+)?(?:\[ARGS\])?")
ID = re.compile(r"[a-zA-Z0-9]{9}")  # templates refuse others


class MistralParser:
    """Everything after the first [TOOL_CALLS] is calls."""

    stop_tokens = ()

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        calls: list[ToolCall] = []
        content, found, _ = text.partition(CALLS)
        position = len(content)
        while found and text.startswith(CALLS, position) and len(calls) < MAX_CALLS:
            try:
                read, position = _read(text, skip_space(text, position + len(CALLS)))
                calls += read
            except InvalidCall as error:
                calls.append(ToolCall("", problem=str(error)))
                position = text.find(CALLS, position + 1)
                if position < 0:
                    break
            position = skip_space(text, position)
        return ParsedTurn(content.strip(), calls)


def _read(text: str, start: int) -> tuple[list[ToolCall], int]:
    """The calls after one marker, and where they end."""
    if text.startswith(("[", "{"), start):
        value, end = json_at(text, start)
        entries = value if isinstance(value, list) else [value]
        return [call_from(entry, _id(as_object(entry).get("id"))) for entry in entries[:MAX_CALLS]], end
    named = NAME.match(text, start)
    if named is None:
        raise InvalidCall(f"expected a JSON list or NAME[ARGS]{{...}} after {CALLS}")
    arguments, end = json_at(text, named.end())
    return [ToolCall(named[1], as_object(arguments), id=_id(named[2]))], end


def _id(identity: Any) -> str:
    return identity if isinstance(identity, str) and ID.fullmatch(identity) else ""
