"""glm: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>, as GLM-4.5 and later write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import (
    InvalidCall,
    ParsedTurn,
    ToolCall,
    properties_of,
    read_json,
    schema_types,
    skip_space,
    tagged_calls,
    typed,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"


class GlmParser:
    """Tags for each argument. A string is plain text, anything else JSON."""

    stop_tokens = ("<|observation|>", "<|user|>")  # the headers of the next turn: a turn has no end of its own
    closing_tag = CLOSE

    def __init__(self, schemas: Sequence[Mapping[str, Any]] = ()) -> None:
        self.properties = properties_of(schemas)

    def parse(self, text: str) -> ParsedTurn:
        return tagged_calls(text, OPEN, CLOSE, self._read)

    def _read(self, text: str, start: int) -> tuple[ToolCall, int]:
        close = max(text.find(CLOSE, start), start)
        key = text.find(KEY, start, close)
        position = close if key < 0 else key
        name = text[start:position].strip()
        if not name:
            return ToolCall("", problem=f"expected the tool's name after {OPEN}"), start
        types, arguments = self.properties.get(name, {}), {}
        while text.startswith(KEY, position := skip_space(text, position)):
            end_key = text.find(END_KEY, position, close)
            value = position if end_key < 0 else skip_space(text, end_key + len(END_KEY))
            end = text.find(END_VALUE, value, close) if text.startswith(VALUE, value) else -1
            if end < 0:
                return ToolCall(name, problem=f"expected {VALUE}value{END_VALUE} after an argument's name"), start
            argument = text[position + len(KEY) : end_key].strip()
            if argument in arguments:
                return ToolCall(name, problem="an argument appears twice"), start
            arguments[argument] = _value(text[value + len(VALUE) : end], types.get(argument))
            position = end + len(END_VALUE)
        return ToolCall(name, arguments), position


def _value(text: str, schema: Any) -> Any:
    if schema_types(schema):
        return typed(text, schema)
    try:
        return read_json(text)
    except InvalidCall:
        return text
