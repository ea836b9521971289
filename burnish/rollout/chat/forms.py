"""Forms: the ways in which templates expect a conversation. Models were trained on what the first one that works gives.

Some templates take a call's arguments as a dict, some as JSON text, some know no calls or no tool role at all, some
want contents as lists of parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from burnish.rollout.chat.tool_calls import ParsedTurn

Message = dict[str, Any]

# Plain ASCII, so that no template or JSON encoder changes them.
SENTINEL = "BURNISHxSAMPLEDxTURN"  # stands for what was sampled
RESULT = "BURNISHxMESSAGE"  # stands for the content of a message that follows


@dataclass(frozen=True)
class Form:
    """One way to give a conversation to a template."""

    calls: Literal["dict", "json", "text"]  # of tool_calls: their arguments; "text": as part of the turn's content
    results: Literal["tool", "user"] = "tool"  # the role of tool results
    parts: bool = False  # contents as [{"type": "text", "text": ...}]
    split_thinking: bool = False  # thinking as `reasoning_content`

    @property
    def structured(self) -> bool:
        return self.calls != "text"

    @property
    def description(self) -> str:
        """For messages about what was tried."""
        calls = {"dict": "tool_calls", "json": "tool_calls with JSON text", "text": "calls as text"}[self.calls]
        return f"{calls}, results as {self.results} messages{', contents as parts' if self.parts else ''}"

    def turn(self, calls: Sequence[Message]) -> Message:
        """The sampled turn, with a marker at its end: in the last argument of the last call, or as its content."""
        if not self.structured:
            return self._message({"role": "assistant", "content": SENTINEL})
        marked = [{} for _ in calls[:-1]] + [{"value": SENTINEL}]
        return {"role": "assistant", "content": "", "tool_calls": self._calls(calls, marked)}

    def messages(self, messages: Iterable[Message]) -> list[Message]:
        """The messages around sampled turns."""
        if self.results == "user":
            messages = _as_user_messages(messages)
        return [self._message(message) for message in messages]

    def conversation(self, messages: Iterable[Message], start: str, end: str) -> list[Message]:
        """Sampled turns (messages with `parsed`) and others. Templates add `start` and `end` to a turn's content."""
        turns = [self._sampled(m, start, end) if "parsed" in m else m for m in messages]
        return self.messages(turns)

    def _sampled(self, message: Message, start: str, end: str) -> Message:
        parsed: ParsedTurn = message["parsed"]
        text = message["content"].removeprefix(start).removesuffix(end)
        if not self.structured:
            thinking, closed, answer = text.partition("</think>")
            if not self.split_thinking or not closed:
                return {"role": "assistant", "content": text}
            thought = thinking.replace("<think>", "", 1).strip()
            return {"role": "assistant", "content": answer.strip(), "reasoning_content": thought}
        content = parsed.content.removeprefix(start.strip()).removesuffix(end.strip())
        turn: Message = {"role": "assistant", "content": content}
        if parsed.thinking:
            turn |= {"reasoning_content": parsed.thinking, "thinking": parsed.thinking}
        if parsed.calls:
            calls = [call.message() for call in parsed.calls]
            turn["tool_calls"] = self._calls(calls, [call.arguments for call in parsed.calls])
            if parsed.thinking and content:  # gpt-oss accepts only one of the two beside a call
                both = f"{parsed.thinking}\n{content}"
                turn |= {"content": "", "reasoning_content": both, "thinking": both}
        return turn

    def _calls(self, calls: Sequence[Message], arguments: Sequence[Any]) -> list[Message]:
        given = [json.dumps(entry, ensure_ascii=False) for entry in arguments] if self.calls == "json" else arguments
        functions = [
            {"name": call["function"]["name"], "arguments": entry} for call, entry in zip(calls, given, strict=True)
        ]
        return [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]

    def _message(self, message: Message) -> Message:
        if not self.parts or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}


# In the order in which they are tried.
AFTER_CALLS = (
    Form("dict"),
    Form("json"),
    Form("text"),
    Form("text", "user"),
    Form("text", parts=True),
    Form("text", "user", parts=True),
)
AFTER_TEXT = (Form("text"), Form("text", parts=True))
# What the model wrote comes first: it is spelled as it was sampled.
CONVERSATIONS = (Form("text"), Form("dict"), Form("json"), *AFTER_CALLS[3:])


def contents_of(messages: Iterable[Message]) -> list[str]:
    """The texts of messages."""
    texts = []
    for message in messages:
        content = message.get("content")
        parts = [content] if isinstance(content, str) else content or []
        texts += [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    return texts


def joined(*contents: str | Sequence[Any]) -> str | list[Any]:
    """Contents of messages one after the other; parts where one of them has images."""
    if all(isinstance(content, str) for content in contents):
        return "".join(map(str, contents))
    return [
        part
        for content in contents
        for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]


def _as_user_messages(messages: Iterable[Message]) -> list[Message]:
    """Tool results as user messages; those in a row are one, because such templates want roles to alternate."""
    given: list[Message] = []
    previous = None
    for message in messages:
        if message["role"] == "tool":
            block = joined("<tool_response>\n", message["content"], "\n</tool_response>")
            message = {"role": "user", "content": block}
            if previous == "tool":
                message["content"] = joined(given.pop()["content"], "\n", block)
            previous = "tool"
        else:
            if message["role"] == "user" and previous == "tool":
                message = {**message, "content": joined(given.pop()["content"], "\n", message["content"])}
            previous = message["role"]
        given.append(message)
    return given
