"""YAML as people write it: a section that is opened twice is one section; a key that is set twice must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from burnish.errors import UserError


class _Loader(yaml.SafeLoader):
    """SafeLoader, but no line is lost to a later one of the same name."""


def read_yaml(path: str | Path) -> Any:
    """What the file says; UserError if it is no YAML or contradicts itself."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str = "the YAML") -> Any:
    """The same from text. A tab before a comment is a blank."""
    lines = [_without_tab(line) for line in text.splitlines()]
    try:
        return yaml.load("\n".join(lines), Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is no YAML: {error}") from error


def _without_tab(line: str) -> str:
    before, tab, comment = line.partition("\t")
    return before if tab and before.strip() and comment.lstrip().startswith("#") else line


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key, value = loader.construct_object(key_node, deep=True), loader.construct_object(value_node, deep=True)
        found[key] = _merged(found[key], value, key, key_node) if key in found else value
    return found


def _merged(first: Any, second: Any, key: Any, node: yaml.Node) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        both = set(first) & set(second)
        return {**first, **second, **{name: _merged(first[name], second[name], name, node) for name in both}}
    if first == second:
        return first
    problem = f"{key} is set twice, to {first!r} and to {second!r}"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
