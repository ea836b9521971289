"""gpt-oss: harmony messages. A call is a message in the commentary channel with a recipient:

<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from burnish.rollout.chat.tool_calls import MAX_CALLS, InvalidCall, ParsedTurn, ToolCall, read_json_object

MARKUP = re.compile(r"<\|(start|message|end|call|return)\|>")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
THINKING = "analysis"  # a channel whose text may mention calls, and never makes one


class GptOssParser:
    """Messages of channels. The turn starts inside the header of its first message."""

    stop_tokens = ("<|call|>", "<|return|>")

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        thinking, content, calls = [], [], []
        for header, body in _messages(text):
            channel = CHANNEL.search(header)
            recipient = RECIPIENT.search(header)
            if channel is not None and channel[1] == THINKING:
                thinking.append(body)
            elif recipient is not None and len(calls) < MAX_CALLS:
                calls.append(_call(recipient[1], body))
            else:
                content.append(body)
        return ParsedTurn("\n".join(content).strip(), calls, "\n".join(thinking).strip())


def _messages(text: str) -> list[tuple[str, str]]:
    """Header and body of each message. A text without markup is one body."""
    messages, header, in_body, position = [], "", False, 0
    for match in MARKUP.finditer(text):
        if match[1] == "message" and not in_body:
            header, in_body, position = text[position : match.start()], True, match.end()
        elif match[1] != "message" and in_body:
            messages.append((header, text[position : match.start()]))
            in_body, position = False, match.end()
        elif match[1] == "start":
            position = match.end()
    rest = text[position:]
    if in_body:
        messages.append((header, rest))
    elif not messages and rest.strip():
        messages.append(("", rest))
    return messages


def _call(name: str, body: str) -> ToolCall:
    try:
        return ToolCall(name, read_json_object(body) if body.strip() else {})
    except InvalidCall as error:
        return ToolCall(name, problem=str(error))
