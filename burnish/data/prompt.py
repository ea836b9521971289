"""Prompt: what one row asks the model, before it is tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import UserError

ROLES = ("system", "developer", "user", "assistant", "tool")
EXAMPLE = '[{"role": "user", "content": "What is 2 + 3?"}]'


@dataclass(frozen=True)
class Prompt:
    """Chat messages. `written` is the string of a row whose prompt is plain text; `ids` are set where a custom dataset
    gives tokens, and then `messages` may be missing."""

    messages: list[dict[str, Any]] | None
    written: str | None = None
    ids: list[int] | None = None

    def contents(self) -> str:
        """The contents of all messages, one after the other, without any template."""
        return "".join(text_of(message.get("content")) for message in self.messages or [])


def read_prompt(row: Mapping[str, Any], prompt_key: str, where: str) -> Prompt:
    """The prompt of a row: tokens, a list of messages, or a string (one user message)."""
    ids = given_ids(row)
    value = row.get(prompt_key, row.get("raw_prompt"))
    if value is None and ids is not None:
        return Prompt(None, ids=ids)
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"{where}: the prompt is empty", key="data.prompt_key", value=prompt_key)
        return Prompt([{"role": "user", "content": value}], written=value, ids=ids)
    return Prompt(read_messages(value, prompt_key, where), ids=ids)


def read_messages(value: object, prompt_key: str, where: str, key: str = "data.prompt_key") -> list[dict[str, Any]]:
    """Check a list of {role, content} and drop what parquet fills in for fields that other rows have."""
    if value is None or isinstance(value, Mapping | bytes) or not isinstance(value, Sequence):
        problem = f"{where}: the prompt must be a list of messages or a string, not {type(value).__name__}"
        raise UserError(problem, key=key, value=prompt_key, allowed=EXAMPLE)
    if not value:
        raise UserError(f"{where}: the prompt has no messages", key=key, value=prompt_key, allowed=EXAMPLE)
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            problem = f"{where}: message {number} of the prompt must be an object with 'role' and 'content'"
            raise UserError(problem, key=key, value=prompt_key, allowed=EXAMPLE)
        messages.append({k: v for k, v in message.items() if v is not None or k == "content"})
    return messages


def given_ids(row: Mapping[str, Any]) -> list[int] | None:
    """Tokens that a row brings: `prompt_ids`, verl's `raw_prompt_ids` or its padded `input_ids` + `attention_mask`."""
    for name in ("prompt_ids", "raw_prompt_ids"):
        if row.get(name) is not None:
            return [int(token) for token in row[name]]
    if row.get("input_ids") is None or row.get("attention_mask") is None:
        return None
    return [int(token) for token, real in zip(row["input_ids"], row["attention_mask"], strict=True) if real]


def text_of(content: object) -> str:
    """The text of a message's content: a string, or parts of which those with text count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)
