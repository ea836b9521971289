"""kimi: <|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|> in a section, as
Kimi K2 writes it. The results name the id, functions.NAME:INDEX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from burnish.rollout.chat.tool_calls import InvalidCall, ParsedTurn, ToolCall, as_object, json_at, tagged_calls

SECTION, END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MAX_ID = 256
ID = re.compile(r"functions\.[\w.-]{1,128}:\d{1,6}", re.ASCII)


class KimiParser:
    """Calls in sections of special tokens."""

    stop_tokens = ("<|im_end|>",)

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        if SECTION not in text:
            return ParsedTurn(text.strip())
        parsed = tagged_calls(text, CALL, END_CALL, _read)
        return replace(parsed, content=parsed.content.replace(SECTION, "").replace(END_SECTION, "").strip())


def _read(text: str, start: int) -> tuple[ToolCall, int]:
    end = text.find(ARGUMENTS, start, start + MAX_ID)
    if end < 0:
        return ToolCall("", problem=f"expected functions.NAME:INDEX{ARGUMENTS}"), start
    identity = text[start:end].strip()
    name = identity.removeprefix("functions.").rpartition(":")[0] or identity
    identity = identity if ID.fullmatch(identity) else ""  # it comes back in the header of the result
    try:
        arguments, position = json_at(text, end + len(ARGUMENTS))
        return ToolCall(name, as_object(arguments), id=identity), position
    except InvalidCall as error:
        return ToolCall(name, problem=str(error), id=identity), end
