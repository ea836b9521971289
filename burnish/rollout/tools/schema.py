"""Schemas of tools: from type hints and docstrings, normalized from YAML, and arguments checked against them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from burnish.errors import UserError

EXAMPLE = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}'
DOCSTRING = '"""Add two numbers.\n\nArgs:\n    a: the first\n    b: the second\n"""'
KEY = "tool_schema"

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def normalize_schema(schema: Any, where: str) -> dict[str, Any]:
    """{"type": "function", "function": {...}} from that, from a flat {name, description, parameters}, or from a model.

    Parameters may also be a list of {name, type, description, required}.
    """
    dump = getattr(schema, "model_dump", None)
    schema = dump(exclude_none=True) if dump is not None else schema
    if not isinstance(schema, Mapping):
        raise UserError(f"{where}: the tool has no schema", key=KEY, value=schema, allowed=EXAMPLE)
    function = schema.get("function", schema)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{where}: the schema has no function name", key=KEY, value=name, allowed=EXAMPLE)
    # `strict: false` is a default of verl's schema class that users never write.
    # `return` is transformers' own; no model was trained on it.
    left_out = ("name", "description", "parameters", "type", "return", *(() if function.get("strict") else ("strict",)))
    rest = {key: value for key, value in function.items() if key not in left_out}
    description = function.get("description") or ""
    parameters = _parameters(function.get("parameters"), where)
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": _plain(parameters), **_plain(rest)},
    }


def _parameters(parameters: Any, where: str) -> Mapping[str, Any]:
    """The JSON schema of a call's arguments."""
    if parameters is None:
        return {"type": "object", "properties": {}}
    if isinstance(parameters, list):
        if not all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in parameters):
            raise UserError(
                f"{where}: every parameter of the list needs a name",
                key=f"{KEY}.function.parameters",
                value=parameters,
                allowed="[{name: query, type: string}]",
            )
        properties = {
            entry["name"]: {key: value for key, value in entry.items() if key not in ("name", "required")}
            for entry in parameters
        }
        required = [entry["name"] for entry in parameters if entry.get("required", True)]
        return {"type": "object", "properties": properties, "required": required}
    valid = isinstance(parameters, Mapping) and isinstance(parameters.get("properties", {}), Mapping)
    if not valid or not isinstance(parameters.get("required") or [], list):
        raise UserError(
            f"{where}: the parameters must be a JSON schema of an object",
            key=f"{KEY}.function.parameters",
            value=parameters,
            allowed='{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
        )
    missing = [name for name in parameters.get("required") or [] if name not in parameters.get("properties", {})]
    if missing:
        raise UserError(
            f"{where}: required parameters without a description of their type",
            key=f"{KEY}.function.parameters.required",
            value=missing,
            allowed=list(parameters.get("properties", {})),
        )
    return parameters


def schema_of(function: Callable[..., Any], name: str | None = None) -> dict[str, Any]:
    """The schema of a Python function, from its type hints and its Google-style docstring."""
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    name = name or str(getattr(function, "__name__", type(function).__name__))
    try:
        schema = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, NameError, TypeError) as error:
        raise UserError(
            f"the tool {name} needs type hints and a docstring that describes every argument: {error}",
            key="tools",
            value=name,
            hint=DOCSTRING,
        ) from error
    schema["function"]["name"] = name
    return normalize_schema(schema, name)


def check_signature(function: Callable[..., Any], schema: Mapping[str, Any], where: str) -> None:
    """Refuse a schema whose parameters the function does not take, or that lacks some that it requires."""
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    described = schema["function"]["parameters"].get("properties", {})
    unknown = [] if takes_any else [name for name in described if name not in named]
    missing = [name for name, p in named.items() if p.default is p.empty and name not in described]
    if unknown or missing:
        problems = [f"has {', '.join(unknown)}, which the function does not take"] if unknown else []
        problems += [f"lacks {', '.join(missing)}, which the function requires"] if missing else []
        raise UserError(
            f"{where}: the schema {' and '.join(problems)}",
            key=f"{KEY}.function.parameters",
            value=list(described),
            allowed=list(named),
        )


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with a call's arguments, for the model; None if nothing is."""
    parameters = schema["function"]["parameters"]
    properties = parameters.get("properties", {})
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    if missing:
        return f"missing argument {', '.join(missing)}"
    unknown = [name for name in arguments if name not in properties]
    if unknown and properties and not parameters.get("additionalProperties", False):
        return f"unknown argument {', '.join(map(str, unknown))[:200]}; expected {', '.join(properties)}"
    for name, value in arguments.items():
        described = properties.get(name)
        if not isinstance(described, Mapping):
            continue
        types = described.get("type")
        types = [types] if isinstance(types, str) else types
        if isinstance(types, list) and types and not any(_fits(value, expected) for expected in types):
            return f"argument {name} must be of type {' or '.join(map(str, types))}, not {_type_name(value)}"
        choices = described.get("enum")
        if choices and value not in choices:
            return f"argument {name} must be one of {', '.join(map(str, choices))}"
    return None


def _fits(value: Any, expected: Any) -> bool:
    if expected not in _TYPES:
        return True
    if isinstance(value, bool) and expected in ("integer", "number"):
        return False
    return isinstance(value, _TYPES[expected])


def _type_name(value: Any) -> str:
    """The JSON type of a value."""
    return next((name for name in ("boolean", *_TYPES) if _fits(value, name)), type(value).__name__)


def _plain(value: Any) -> Any:
    """Plain dicts and lists, without nulls: templates print what is there."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
