"""Tool calls, tool results and tool schemas in conversations of files, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt, text_of
from burnish.errors import UserError
from burnish.untrusted import parse_json

Message = dict[str, Any]


def read_schemas(value: Any, where: str, key: str) -> Any:
    """The schemas of a row's tools, also as JSON text, without the nulls that parquet adds for fields of others."""
    if isinstance(value, str):
        value = parse_json(value, f"{where}: {key}")
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}: the tools must be a list of schemas, not {type(value).__name__}", key=key)
    return [_without_nulls(parse_json(schema) if isinstance(schema, str) else schema) for schema in value]


def with_calls(encoder: PromptEncoder, messages: list[Message]) -> list[Message]:
    """The conversation with the arguments of its calls as this template takes them: as mappings, or as JSON text."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    as_text = not _takes_mappings(encoder)
    given = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            content = message.get("content")
            calls = [_call(call, as_text) for call in calls]
            message = {**message, "content": "" if content is None else content, "tool_calls": calls}
        given.append(message)
    return given


def _call(call: Mapping[str, Any], as_text: bool) -> Message:
    """A call as {"type", "function": {"name", "arguments"}}; files may leave out the level in between."""
    function = call["function"] if isinstance(call.get("function"), Mapping) else call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except UserError:  # not JSON: shown as it is
            return {"type": "function", **call}
    arguments = _without_nulls(arguments or {})
    if as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    rest = {name: value for name, value in call.items() if value is not None and name not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {"name": function.get("name"), "arguments": arguments}}


def _takes_mappings(encoder: PromptEncoder) -> bool:
    """Whether the template renders arguments that are mappings, instead of failing or printing Python's notation."""
    function = {"name": "tool", "arguments": {"BURNISHxKEY": "value"}}
    call = {"type": "function", "id": "call00000", "function": function}
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "tool", "content": "result", "tool_call_id": "call00000"},
    ]
    try:
        return "{'BURNISHxKEY'" not in encoder.text(Prompt(messages))
    except TemplateFailure:
        return False


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list | tuple) else value


def check_shown(messages: list[Message], segments: list[tuple[str, bool]]) -> None:
    """Refuse a template that drops calls, which would be targets, or tool results."""
    targets = "".join(text for text, is_target in segments if is_target)
    others = _squeezed("".join(text for text, is_target in segments if not is_target))
    for number, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            if str(call["function"]["name"]) not in targets:
                raise TemplateFailure(f"the template does not show the tool calls of message {number}")
        if message["role"] == "tool":
            content = text_of(message.get("content"))
            forms = (content, json.dumps(content)[1:-1], json.dumps(content, ensure_ascii=False)[1:-1])
            if not any(_squeezed(form) in others for form in forms):
                raise TemplateFailure(f"the template does not show the tool result of message {number}")


def _squeezed(text: str) -> str:
    """Without white space: templates may strip or indent contents."""
    return "".join(text.split())
