"""JSON schema of a job's config, with which editors complete and check YAML files."""

from __future__ import annotations

import typing
from typing import Any

from burnish.config.aliases import VALUES, find_alias
from burnish.config.explain import Explained, describe_all
from burnish.config.tree import Leaf, Section, kinds, tree
from burnish.config.values import convert
from burnish.errors import UserError

DRAFT = "http://json-schema.org/draft-07/schema#"  # the newest that YAML editors support in full
_NUMBER_TEXT = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"  # YAML 1.1 reads 1e-6 as text
_SPECIAL = (None, "", False, True, 0, 1)  # values that some keys accept beside those of their type
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
_USER_PATH = {"type": "string", "pattern": r"\.py:|^pkg://.+:"}
_SIMPLE: dict[Any, list[dict[str, Any]]] = {
    type(None): [{"type": "null"}],
    bool: [{"type": "boolean"}, {"type": "string", "pattern": "^([Tt]rue|TRUE|[Ff]alse|FALSE)$"}],
    int: [{"type": "integer"}, {"type": "string", "pattern": _NUMBER_TEXT}],
    float: [{"type": "number"}, {"type": "string", "pattern": rf"{_NUMBER_TEXT}|^[-+]?(inf|nan)$"}],
    str: [{"type": ["string", "number", "boolean"]}],
    Any: [{}],
}


def config_schema(job: str = "train", lang: str = "en") -> dict[str, Any]:
    """The schema of a job's YAML files: types, bounds, allowed values, defaults and descriptions of all keys."""
    keys = tree(job)
    root = _section_schema(None, f"burnish {job}")
    # Hydra's own entries.
    root["properties"] = {"defaults": {"type": "array", "description": "Files to compose."}, "hydra": {}}
    for section in keys.sections.values():
        _insert(root, section.key, _section_schema(section, section.doc))
        if f"{section.key}.enable" in keys.leaves:
            _find(root, section.key)["type"].append("boolean")
    rows = describe_all(lang, job)
    for row in rows:
        _insert(root, row.key, _leaf_schema(keys.leaves[row.key], row))
    for row in rows:
        for alias in row.aliases:
            _insert_alias(root, alias, row, keys.leaves[row.key])
    return {"$schema": DRAFT, "title": f"burnish {job}", **root}


def _section_schema(section: Section | None, doc: str) -> dict[str, Any]:
    """A mapping of known keys. `_target_` is Hydra's and ignored; null is an empty section."""
    return {
        "type": ["object", "null"] if section else ["object"],
        "description": doc,
        "properties": {},
        "patternProperties": {"^_target_$": {}},
        "additionalProperties": False,
    }


def _find(root: dict[str, Any], key: str) -> dict[str, Any]:
    node = root
    for name in key.split("."):
        node = node["properties"][name]
    return node


def _insert(root: dict[str, Any], key: str, schema: dict[str, Any]) -> None:
    *sections, last = key.split(".")
    node = root
    for name in sections:
        # A section that only aliases have may contain keys that no row lists.
        other = {"type": ["object", "null"], "properties": {}}
        node = node["properties"].setdefault(name, other)
        if "properties" not in node:  # a free mapping, which accepts the key already
            return
    node["properties"].setdefault(last, schema)


def _insert_alias(root: dict[str, Any], alias: str, row: Explained, leaf: Leaf) -> None:
    match = find_alias(alias, row.job)
    converts = match is not None and match[0].convert is not None
    schema = {} if converts else _leaf_schema(leaf, row)
    _insert(root, alias, {**schema, "description": f"Alias of {row.key}. {row.doc}", "deprecated": True})


def _leaf_schema(leaf: Leaf, row: Explained) -> dict[str, Any]:
    alternatives = [part for kind in kinds(leaf.hint) for part in _kind_schemas(kind, leaf)]
    free_text = str in kinds(leaf.hint) and leaf.facts.allowed is None  # accepts them all, and editors would offer them
    special = [*leaf.facts.off, *(value for value in _SPECIAL if _is_accepted(leaf, value) and not free_text)]
    special += [None] if free_text and _is_accepted(leaf, None) else []
    schema: dict[str, Any] = {"description": _description(row)}
    if row.follows is None:
        schema["default"] = row.default
    if {} not in alternatives:
        schema["anyOf"] = [*alternatives, *([{"enum": special}] if special else []), _INTERPOLATION]
    return schema


def _kind_schemas(kind: Any, leaf: Leaf) -> list[dict[str, Any]]:
    origin = typing.get_origin(kind)
    if origin is dict:
        return [{"type": "object"}]
    if origin is list:
        items = [*_entry_schemas(typing.get_args(kind)[0], leaf), _INTERPOLATION]
        separated = [{"type": "string"}] if leaf.facts.comma_separated else []
        return [{"type": "array", "items": {"anyOf": items}}, *items, *separated]
    return _entry_schemas(kind, leaf)


def _entry_schemas(kind: Any, leaf: Leaf) -> list[dict[str, Any]]:
    """A scalar, or an entry of a list, within its bounds and allowed values."""
    facts = leaf.facts
    if facts.allowed is not None and kind is not type(None):
        others = [theirs for key, theirs in VALUES if key == leaf.key]
        return [{"enum": [*facts.allowed, *others]}, *([_USER_PATH] if facts.user_paths else [])]
    bounds: dict[str, float] = {}
    if facts.low is not None:
        bounds["exclusiveMinimum" if facts.open_low else "minimum"] = facts.low
    if facts.high is not None:
        bounds["maximum"] = facts.high
    return [part | (bounds if part.get("type") in ("integer", "number") else {}) for part in _SIMPLE[kind]]


def _is_accepted(leaf: Leaf, value: Any) -> bool:
    try:
        convert(leaf, value)
    except UserError:
        return False
    return True


def _description(row: Explained) -> str:
    parts = [row.doc]
    if row.follows is not None:
        parts.append(f"Default: {row.follows}.")
    if row.allowed and any(row.allowed.values()):
        parts += [f"\n- {name}: {line}" for name, line in row.allowed.items() if line]
    if row.status != "acts":
        parts.append(f"\n{row.status}: {row.why}" if row.why else f"\n{row.status}")
    return " ".join(parts).replace(" \n", "\n")
