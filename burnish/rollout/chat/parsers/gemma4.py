"""gemma4: <|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>, as Gemma 4 writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from burnish.rollout.chat.parsers.literals import LiteralReader
from burnish.rollout.chat.tool_calls import InvalidCall, ParsedTurn, ToolCall, tagged_calls

QUOTE = '<|"|>'
NAME = re.compile(r"\s*+call:([\w.-]{1,256})\s*+(?=\{)")
KEY = re.compile(r"\s*+([^:{}\[\],<>]{1,256}?)\s*:")
THINKING = re.compile(r"<\|channel>(?:thought\n)?(.*?)(?:<channel\|>|\Z)", re.DOTALL)


class GemmaReader(LiteralReader):
    """Strings between a token of their own, keys without quotes."""

    quotes = (QUOTE,)

    def string(self, quote: str) -> str:
        start = self.position + len(quote)
        end = self.text.find(quote, start)
        if end < 0:
            raise InvalidCall("a string is not closed")
        self.position = end + len(quote)
        return self.text[start:end]

    def key(self) -> str:
        self.skip()
        if self.text.startswith(QUOTE, self.position):
            return self.string(QUOTE)
        key = KEY.match(self.text, self.position)
        if key is None:
            raise InvalidCall(f"expected a key at {self._here()}")
        self.position = key.end() - 1
        return key[1]


class Gemma4Parser:
    """Calls between special tokens, in a notation of Gemma's own."""

    stop_tokens = ("<|tool_response>",)  # the model opens the block of the result

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        thinking = [match[1].strip() for match in THINKING.finditer(text)]
        parsed = tagged_calls(THINKING.sub("", text) if thinking else text, "<|tool_call>", "<tool_call|>", _read)
        return ParsedTurn(parsed.content, parsed.calls, "\n".join(thinking))


def _read(text: str, start: int) -> tuple[ToolCall, int]:
    name = NAME.match(text, start)
    if name is None:
        return ToolCall("", problem="expected call:NAME{...}"), start
    reader = GemmaReader(text, name.end())
    try:
        return ToolCall(name[1], reader.mapping(0)), reader.position
    except InvalidCall as error:
        return ToolCall(name[1], problem=str(error)), name.end()
