"""YAML loading that merges repeated sections and rejects keys that are set twice to different values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from burnish.errors import UserError


class _Loader(yaml.SafeLoader):
    """SafeLoader without its rule that a later duplicate key replaces an earlier one."""


def read_yaml(path: str | Path) -> Any:
    """Load a file. UserError if it is unreadable, not YAML, or contradicts itself."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str = "the YAML") -> Any:
    """Parse text. A tab before a comment, which YAML forbids, is accepted."""
    lines = [_without_tab(line) for line in text.splitlines()]
    try:
        return yaml.load("\n".join(lines), Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: invalid YAML: {error}") from error


def _without_tab(line: str) -> str:
    before, tab, comment = line.partition("\t")
    return before if tab and before.strip() and comment.lstrip().startswith("#") else line


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key, value = loader.construct_object(key_node, deep=True), loader.construct_object(value_node, deep=True)
        mapping[key] = _merge(mapping[key], value, key, key_node) if key in mapping else value
    return mapping


def _merge(first: Any, second: Any, key: Any, node: yaml.Node) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        both = set(first) & set(second)
        return {**first, **second, **{name: _merge(first[name], second[name], name, node) for name in both}}
    if first == second:
        return first
    problem = f"{key} is set twice, to {first!r} and to {second!r}"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)
