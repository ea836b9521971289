"""qwen3_coder: <tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>.

Qwen3-Coder, Qwen3.5 and later, and Nemotron 3 write it. Values are plain text: a tool's schema says their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall, properties_of, skip_space, tagged_calls, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


class Qwen3CoderParser:
    """Tags for the function and each of its parameters."""

    stop_tokens = ()
    closing_tag = CLOSE

    def __init__(self, schemas: Sequence[Mapping[str, Any]] = ()) -> None:
        self.properties = properties_of(schemas)

    def parse(self, text: str) -> ParsedTurn:
        return tagged_calls(text, OPEN, CLOSE, self._read)

    def _read(self, text: str, start: int) -> tuple[ToolCall, int]:
        name, position = _tag_value(text, FUNCTION, skip_space(text, start))
        if name is None:
            return ToolCall("", problem=f"expected {FUNCTION}NAME>"), start
        types, arguments, close = self.properties.get(name, {}), {}, text.find(CLOSE, start)
        while not text.startswith(END_FUNCTION, position := skip_space(text, position)):
            key, inside = _tag_value(text, PARAMETER, position)
            end = -1 if key is None else text.find(END_PARAMETER, inside, max(close, inside))
            if key is None or end < 0:
                problem = f"expected {PARAMETER}KEY>value{END_PARAMETER} or {END_FUNCTION}"
                return ToolCall(name, problem=problem), start
            if key in arguments:
                return ToolCall(name, problem="a parameter appears twice"), start
            arguments[key] = typed(_without_newlines(text[inside:end]), types.get(key))
            position = end + len(END_PARAMETER)
        return ToolCall(name, arguments), position + len(END_FUNCTION)


def _tag_value(text: str, tag: str, position: int) -> tuple[str | None, int]:
    """NAME of `<function=NAME>` at a position, and where the tag ends."""
    end = text.find(">", position, position + 256) if text.startswith(tag, position) else -1
    return (None, position) if end < 0 else (text[position + len(tag) : end].strip(), end + 1)


def _without_newlines(value: str) -> str:
    """Templates put a value on lines of its own."""
    return value.removeprefix("\n").removesuffix("\n")
