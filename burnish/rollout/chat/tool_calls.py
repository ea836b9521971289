"""Tool calls in the text of a model: the registry of formats, and what a parser returns."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from burnish.registry import Registry

# An entry is a function of the tools' schemas that returns a ToolParser. Names are those of vLLM, SGLang and verl.
TOOL_PARSERS = Registry("tool-call format", key="actor_rollout_ref.rollout.multi_turn.format")
for _parser, _names in {
    "hermes:HermesParser": ("hermes", "qwen", "qwen25"),
    "qwen3_coder:Qwen3CoderParser": ("qwen3_coder", "qwen3_xml"),
    "gpt_oss:GptOssParser": ("gpt-oss", "openai"),
    "llama3_json:Llama3JsonParser": ("llama3_json", "llama3", "llama4_json"),
    "glm:GlmParser": ("glm", "glm45", "glm47"),
    "kimi:KimiParser": ("kimi", "kimi_k2"),
    "deepseek:DeepseekParser": ("deepseek_v3", "deepseekv3", "deepseek_v31", "deepseekv31"),
    "gemma4:Gemma4Parser": ("gemma4",),
    "mistral:MistralParser": ("mistral",),
    "pythonic:PythonicParser": ("pythonic", "llama4_pythonic", "lfm2"),
}.items():
    for _name in _names:
        TOOL_PARSERS.register_lazy(_name, f"burnish.rollout.chat.parsers.{_parser}")

MAX_NESTING = 64  # levels of a call's arguments; templates and tools recurse over them
MAX_CALLS = 256  # of a turn; the rest is content
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half of a character
SPACE = re.compile(r"\s*+")
ANY_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class ToolCall:
    """One call. `problem` says why it cannot be executed; the model is told."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    id: str = ""  # of formats that have one

    def message(self) -> dict[str, Any]:
        """As chat templates and tools' owners read it."""
        # A name goes into the headers of some templates, where one that the model made up must not act as markup.
        name = self.name if ANY_NAME.fullmatch(self.name) else "unknown"
        return {"type": "function", "id": self.id, "function": {"name": name, "arguments": self.arguments}}


@dataclass(frozen=True)
class ParsedTurn:
    """A sampled turn: the calls in order, the text without them, and thinking where the format marks it."""

    content: str
    calls: list[ToolCall] = field(default_factory=list)
    thinking: str = ""


# Reads a call that starts at a position of a text; returns it and where it ends.
ReadCall = Callable[[str, int], tuple[ToolCall, int]]


class ToolParser(Protocol):
    """Reads calls from a turn's text.

    The text has its special tokens, without the one that ended the turn. `parse` never raises, whatever the text, and
    takes time that is linear in its length.

    A parser may have a `closing_tag`: once it is sampled, the call before it is complete, and no later text changes it.
    """

    stop_tokens: Sequence[str]  # tokens that end a turn with calls besides EOS

    def parse(self, text: str) -> ParsedTurn: ...


class InvalidCall(ValueError):
    """The text of a call is not what its format says."""


def read_json(text: str) -> Any:
    """A JSON value of a model, without NaN, infinity, duplicate keys, lone surrogates or deep nesting."""
    value, end = json_at(text, 0)
    if text[end:].strip():
        raise InvalidCall(f"not valid JSON: extra data at character {end}")
    return value


def read_json_object(text: str) -> dict[str, Any]:
    """A JSON object of a model; InvalidCall says what is wrong."""
    return as_object(read_json(text))


def json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at a position, and where it ends: what follows may contain the closing tag in a string."""
    start = skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise InvalidCall(f"not valid JSON: {error.msg} at character {error.pos - start}") from error
    except RecursionError as error:
        raise InvalidCall(f"the JSON is nested more than {MAX_NESTING} levels deep") from error
    except ValueError as error:  # numbers of thousands of digits, and what the hooks refuse
        raise InvalidCall(f"not valid JSON: {error}") from error
    if nesting(value) > MAX_NESTING:
        raise InvalidCall(f"the JSON is nested more than {MAX_NESTING} levels deep")
    if SURROGATE.search(text, start, end):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidCall("a string has half of a surrogate pair") from error
    return value, end


def skip_space(text: str, start: int) -> int:
    return SPACE.match(text, start).end()  # type: ignore[union-attr]  # it also matches nothing


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidCall(f"expected a JSON object, not {type(value).__name__}")
    return value


def call_from(fields: Any, id: str = "") -> ToolCall:
    """{"name": ..., "arguments": {...}} as a call. `parameters` is Llama's word for arguments."""
    fields = as_object(fields)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidCall('a call needs a "name"')
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_json_object(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(name, problem="the arguments must be a JSON object", id=id)
    return ToolCall(name, arguments, id=id)


def tagged_calls(text: str, opening: str, closing: str, read: ReadCall) -> ParsedTurn:
    """Calls between two tags. A call that is not closed is no call: the model wrote about calls, or was cut."""
    content, calls, position = [], [], 0
    while (start := text.find(opening, position)) >= 0 and len(calls) < MAX_CALLS:
        call, read_to = read(text, start + len(opening))
        end = text.find(closing, read_to)
        if end < 0:
            break
        if call.problem is None and text[read_to:end].strip():
            call = ToolCall(call.name, problem=f"unexpected text before {closing}", id=call.id)
        content.append(text[position:start])
        calls.append(call)
        position = end + len(closing)
    return ParsedTurn("".join([*content, text[position:]]).strip(), calls)


def read_json_call(text: str, start: int) -> tuple[ToolCall, int]:
    """{"name": ..., "arguments": {...}} at a position, and where it ends."""
    try:
        fields, end = json_at(text, start)
        return call_from(fields), end
    except InvalidCall as error:
        return ToolCall("", problem=str(error)), start


def typed(text: str, schema: Any) -> Any:
    """A value that a format writes as plain text, by its JSON schema; unchanged where it does not fit.

    Whoever checks the arguments tells the model which type was expected.
    """
    types = schema_types(schema)
    if not types or "string" in types:
        return None if text == "null" and "null" in types else text
    stripped = text.strip()
    if stripped in PYTHON_CONSTANTS:
        return PYTHON_CONSTANTS[stripped]
    try:
        return read_json(stripped)
    except InvalidCall:
        return text


PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}  # as templates print them


def schema_types(schema: Any) -> set[str]:
    """The types that a JSON schema allows; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    stated = schema.get("type")
    types = {stated} if isinstance(stated, str) else set(stated) if isinstance(stated, list) else set()
    for name in ("anyOf", "oneOf"):
        for option in schema.get(name) or ():
            types |= schema_types(option)
    return types


def properties_of(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The schemas of the arguments, by tool and argument."""
    functions = [schema.get("function", schema) for schema in schemas]
    return {f["name"]: (f.get("parameters") or {}).get("properties") or {} for f in functions}


def nesting(value: Any) -> int:
    """How deep a value is nested, without recursion."""
    depth, level = 0, [value]
    while level := [
        entry
        for container in level
        if isinstance(container, dict | list)
        for entry in (container.values() if isinstance(container, dict) else container)
    ]:
        depth += 1
    return depth


def _refuse_constant(name: str) -> float:
    raise InvalidCall(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidCall(f"{text[:20]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise InvalidCall("a key appears twice")
    return values


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
