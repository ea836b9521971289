"""Where the assistant's turns are in the rendering of a conversation.

Most templates are append-only: the rendering of some messages begins that of more messages, which tells where a turn
starts and ends. Others rewrite earlier turns, for example to remove their thinking. There, the place of a message is
found by rendering the conversation with other contents in it: what changes is the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt

Message = dict[str, Any]
Segment = tuple[str, bool]  # text, whether it is a target
Render = Callable[[list[Message]], str]
THINK = "<think>"  # what templates write of a turn before the model does
VARIANTS = ("0", "1")  # no text starts or ends with both


def turn_segments(encoder: PromptEncoder, messages: list[Message]) -> list[Segment]:
    """The conversation's text, split before and after each assistant turn. A turn has no header, but its end."""
    no_header = replace(encoder, template_kwargs={**encoder.template_kwargs, "add_generation_prompt": False})

    def render(some: list[Message]) -> str:
        return no_header.text(Prompt(some))

    def with_header(some: list[Message]) -> str:
        """The text through the header of the next assistant turn; a conversation may start with the assistant."""
        if some:
            return encoder.text(Prompt(some))
        return render([{"role": "assistant", "content": "\x00"}]).partition("\x00")[0]

    whole = render(messages)
    spans = _prefix_spans(whole, messages, render, with_header)
    if spans is None:
        spans = list(_changed_spans(whole, messages, render, with_header))
    header, segments, done = _header(messages, render, with_header) if len(spans) > 1 else "", [], 0
    for start, end in spans:
        if header and whole.startswith(header, start):  # some continue the turn of a tool call, but render a new one
            start += len(header)
        segments += [(whole[done:start], False), (whole[start:end], True)]
        done = end
    return [(text, is_target) for text, is_target in [*segments, (whole[done:], False)] if text]


def _header(messages: list[Message], render: Render, with_header: Render) -> str:
    """What the template writes before the first assistant turn."""
    number = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
    without, through = render(messages[:number]) if number else "", with_header(messages[:number])
    return through[len(without) :] if through.startswith(without) else ""


def _prefix_spans(
    whole: str, messages: list[Message], render: Render, with_header: Render
) -> list[tuple[int, int]] | None:
    """Spans in an append-only rendering; None if it is not."""
    spans, done = [], 0
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = with_header(messages[:number]), render(messages[: number + 1])
            grows = len(before) >= done and after.startswith(before)
            if not grows or not whole.startswith(after):
                return None
            spans.append((len(before), len(after)))
            done = len(after)
    return spans


def _changed_spans(
    whole: str, messages: list[Message], render: Render, with_header: Render
) -> Iterator[tuple[int, int]]:
    """Spans in any rendering. What follows a message is taken from the rendering that ends with it."""
    done = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if number:
            tail = _tail(messages[:number], with_header)
            start = _after(whole, _end_of(messages, number - 1, whole, render), [tail, tail.rpartition(THINK)[0]])
        else:
            start = len(with_header([]))
        tail = _tail(messages[: number + 1], render)
        # The token that ends the last turn of a conversation may be another one than in its middle.
        end = _after(whole, _end_of(messages, number, whole, render), [tail, tail.rstrip(), *_before_markers(tail)])
        if start is None or end is None or not done <= start < end:
            raise TemplateFailure(f"the template renders the turns before or after message {number} differently")
        yield start, end
        done = end


def _before_markers(tail: str) -> list[str]:
    """The beginnings of a text that end where a marker starts, longest first."""
    return [tail[:at] for at in range(len(tail) - 1, -1, -1) if tail[at] in "<["]


def _after(whole: str, position: int, candidates: list[str]) -> int | None:
    """Where the first of the candidates that stands at this position ends."""
    fitting = (text for text in candidates if whole.startswith(text, position))
    return next((position + len(text) for text in fitting), None)


def _tail(messages: list[Message], render: Render) -> str:
    """What follows the last message."""
    text = render(messages)
    return text[_end_of(messages, len(messages) - 1, text, render) :]


def _end_of(messages: list[Message], number: int, text: str, render: Render) -> int:
    """Where a message ends in `text`, the rendering of all: after it, nothing depends on its contents."""
    suffixes = []
    for contents in ({"content", "calls"}, {"calls"}) if messages[number].get("tool_calls") else ({"content"},):
        try:
            others = [_with(messages, number, _variant(messages[number], value, contents)) for value in VARIANTS]
            rendered = [render(other) for other in others]
        except TemplateFailure:  # some do not take a content beside calls
            continue
        suffixes = [_common_suffix(text, other) for other in rendered if other != text]
        break
    if not suffixes:
        raise TemplateFailure(f"the template does not show message {number} or renders it differently")
    return len(text) - min(suffixes)


def _with(messages: list[Message], number: int, message: Message) -> list[Message]:
    return [*messages[:number], message, *messages[number + 1 :]]


def _variant(message: Message, value: str, contents: set[str]) -> Message:
    """The message with other contents."""
    changed = dict(message)
    if "content" in contents:
        is_text = isinstance(message.get("content"), str) or message.get("content") is None
        changed["content"] = value if is_text else [{"type": "text", "text": value}]
    if "calls" in contents:
        text = isinstance(message["tool_calls"][-1]["function"]["arguments"], str)
        arguments = f'{{"{value}": "{value}"}}' if text else {value: value}
        last = message["tool_calls"][-1]
        call = {**last, "function": {**last["function"], "arguments": arguments}}
        changed["tool_calls"] = [*message["tool_calls"][:-1], call]
    return changed


def _common_suffix(one: str, other: str) -> int:
    limit = min(len(one), len(other))
    return next((n for n in range(limit) if one[-1 - n] != other[-1 - n]), limit)
