"""Prompt: the messages, text or tokens of one row, before encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.pictures import RawMedia
from burnish.errors import UserError

ROLES = ("system", "developer", "user", "assistant", "tool")
EXAMPLE = '[{"role": "user", "content": "What is 2 + 3?"}]'


@dataclass(frozen=True)
class Prompt:
    """Chat messages. `plain_text` is set for a prompt that is a string; `ids` for one with tokens, which may have no
    messages."""

    messages: list[dict[str, Any]] | None
    plain_text: str | None = None
    ids: list[int] | None = None
    tools: tuple[str, ...] | None = None  # names of the tools that the model is shown; None: all
    media: tuple[RawMedia, ...] = ()  # one for each part of the messages with type image or video, in order

    def contents(self) -> str:
        """The contents of all messages, joined without a template."""
        return "".join(text_of(message.get("content")) for message in self.messages or [])


def read_prompt(row: Mapping[str, Any], prompt_key: str, where: str) -> Prompt:
    """The prompt of a row: tokens, a list of messages, or a string (one user message)."""
    ids = token_ids(row)
    value = row.get(prompt_key, row.get("raw_prompt"))
    if value is None and ids is not None:
        return Prompt(None, ids=ids)
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"{where}: the prompt is empty", key="data.prompt_key", value=prompt_key)
        return Prompt([{"role": "user", "content": value}], plain_text=value, ids=ids)
    return Prompt(read_messages(value, prompt_key, where), ids=ids)


def select_tools(row: Mapping[str, Any], known: Sequence[str], where: str) -> tuple[str, ...] | None:
    """extra_info.tool_selection: the tools of this row; None for all."""
    extra = row.get("extra_info")
    names = extra.get("tool_selection") if known and isinstance(extra, Mapping) else None
    if names is None:
        return None
    unknown = [name for name in names if name not in known] if not isinstance(names, str) else [names]
    if unknown:
        raise UserError(
            f"{where}: no such tool", key="extra_info.tool_selection", value=unknown[0], allowed=f"a list of {known}"
        )
    return tuple(names)


def read_messages(value: object, prompt_key: str, where: str, key: str = "data.prompt_key") -> list[dict[str, Any]]:
    """Check a list of {role, content}, and drop the nulls that parquet adds for fields of other rows."""
    if value is None or isinstance(value, Mapping | bytes) or not isinstance(value, Sequence):
        problem = f"{where}: the prompt must be a list of messages or a string, not {type(value).__name__}"
        raise UserError(problem, key=key, value=prompt_key, allowed=EXAMPLE)
    if not value:
        raise UserError(f"{where}: the prompt has no messages", key=key, value=prompt_key, allowed=EXAMPLE)
    messages = []
    for number, message in enumerate(value):
        if isinstance(message, Mapping) and message.get("tool_calls") and "content" not in message:
            message = {**message, "content": None}
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            problem = f"{where}: message {number} of the prompt must be an object with 'role' and 'content'"
            raise UserError(problem, key=key, value=prompt_key, allowed=EXAMPLE)
        messages.append({k: v for k, v in message.items() if v is not None or k == "content"})
    return messages


def token_ids(row: Mapping[str, Any]) -> list[int] | None:
    """Tokens of a row: `prompt_ids`, verl's `raw_prompt_ids`, or its padded `input_ids` with `attention_mask`."""
    for name in ("prompt_ids", "raw_prompt_ids"):
        if row.get(name) is not None:
            return [int(token) for token in row[name]]
    if row.get("input_ids") is None or row.get("attention_mask") is None:
        return None
    return [int(token) for token, real in zip(row["input_ids"], row["attention_mask"], strict=True) if real]


def text_of(content: str | Iterable[Mapping[str, Any]] | None) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)
