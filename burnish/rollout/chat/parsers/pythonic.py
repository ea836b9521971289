"""pythonic: [NAME(key="text", other=1), ...], as Llama 4, LFM2, Gemma 3 and ToolACE write it.

The list is the whole turn, or stands between <|python_start|> and <|python_end|> (Llama 4), <|tool_call_start|> and
<|tool_call_end|> (LFM2), or in a ```tool_code block (Gemma 3), where the brackets may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from burnish.rollout.chat.parsers.literals import PythonReader
from burnish.rollout.chat.tool_calls import MAX_CALLS, InvalidCall, ParsedTurn, ToolCall

TAGS = (("<|python_start|>", "<|python_end|>"), ("<|tool_call_start|>", "<|tool_call_end|>"), ("```tool_code", "```"))
BARE_LIST = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.]{0,255}+\s*+\(")


class PythonicParser:
    """Calls as Python would write them. They are read by hand and never run."""

    stop_tokens = ()

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        for opening, closing in TAGS:
            start = text.find(opening)
            if start < 0:
                continue
            calls, position = _calls(text, start + len(opening))
            end = text.find(closing, position)
            if end < 0:
                return ParsedTurn(text.strip())
            calls = _checked(calls, text[position:end])
            return ParsedTurn((text[:start] + text[end + len(closing) :]).strip(), calls)
        if not BARE_LIST.match(text):
            return ParsedTurn(text.strip())
        calls, position = _calls(text, 0)
        return ParsedTurn("", _checked(calls, text[position:]))


def _checked(calls: list[ToolCall], rest: str) -> list[ToolCall]:
    """The calls, unless text follows them that is none."""
    if rest.strip() and all(call.problem is None for call in calls):
        return [ToolCall("", problem=f"unexpected text after the calls: {rest.strip()[:20]!r}")]
    return calls


def _calls(text: str, start: int) -> tuple[list[ToolCall], int]:
    reader, calls = PythonReader(text, start), []
    try:
        in_list = reader.accept("[")
        while len(calls) < MAX_CALLS and not (in_list and reader.accept("]")):
            calls.append(_call(reader))
            if not reader.accept(","):
                if in_list:
                    reader.expect("]")
                break
    except InvalidCall as error:
        calls.append(ToolCall("", problem=str(error)))
    return calls, reader.position


def _call(reader: PythonReader) -> ToolCall:
    name, arguments = reader.word(), {}
    while reader.accept("."):
        name += f".{reader.word()}"
    reader.expect("(")
    while not reader.accept(")"):
        key = reader.word()
        if key in arguments:
            raise InvalidCall("an argument appears twice")
        reader.expect("=")
        arguments[key] = reader.value()
        if not reader.accept(","):
            reader.expect(")")
            break
    return ToolCall(name, arguments)
