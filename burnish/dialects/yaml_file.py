"""YAML loading that merges repeated sections and rejects keys that are set twice to different values.

All values of a file are printed. A script that is only looked at may name any file, so `reading_only` limits which ones
are read for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from burnish.errors import UserError
from burnish.untrusted import BoundedLoader, load_yaml, read_text

MAX_FILES = 500  # of a config folder
_may_read: ContextVar[Callable[[Path], bool] | None] = ContextVar("may_read", default=None)


@contextmanager
def reading_only(may_read: Callable[[Path], bool]) -> Iterator[None]:
    """Inside the context, refuse files for which `may_read` is false."""
    token = _may_read.set(may_read)
    try:
        yield
    finally:
        _may_read.reset(token)


def check_folder(folder: str | Path, names: Sequence[str] = (), checked: frozenset[Path] = frozenset()) -> None:
    """Check all files that Hydra might read when it composes files of a folder, in a context of `reading_only`.

    `names` are the overrides that select files. Hydra reads the files itself, without our limits. `checked` are the
    folders that named this one in a search path.
    """
    if _may_read.get() is None or Path(folder).absolute() in checked:
        return
    files = list(islice((file for file in Path(folder).rglob("*.y*ml") if file.is_file()), MAX_FILES + 1))
    if len(files) > MAX_FILES:
        raise UserError(f"{folder}: more than {MAX_FILES} config files", hint="--trust")
    contents = [read_yaml(file) for file in files]
    mappings = [content for content in contents if isinstance(content, dict)]
    selected = [*names, *(str(content.get("defaults")) for content in mappings)]
    if any(".." in text for text in selected):
        raise _leads_elsewhere(folder)
    for content in mappings:
        for path in _search_path(folder, content.get("hydra")):
            check_folder(path, (), checked | {Path(folder).absolute()})


def _search_path(folder: str | Path, hydra: Any) -> Iterator[Path]:
    """The folders of `hydra: searchpath:` that exist, such as file://verl/trainer/config in verl's own tree.

    Packages (pkg://) are refused, because they are imported; so are paths that are not plain text.
    """
    if "searchpath" not in str(hydra):
        return
    entries = hydra.get("searchpath") if isinstance(hydra, dict) else None
    for entry in entries if isinstance(entries, list) else [None]:
        path = entry.removeprefix("file://") if isinstance(entry, str) else ""
        if not path or any(mark in path for mark in ("://", "..", "$")):
            raise _leads_elsewhere(folder)
        if Path(path).exists():
            yield Path(path)


def _leads_elsewhere(folder: str | Path) -> UserError:
    return UserError(f"{folder}: its files include files of other folders", hint="--trust, if you trust them")


class _Loader(BoundedLoader):
    """Without the rule that a later duplicate key replaces an earlier one."""


def read_yaml(path: str | Path) -> Any:
    """Load a file. UserError if it is unreadable, not YAML, or contradicts itself."""
    file = Path(path).expanduser()
    may_read = _may_read.get()
    if may_read is not None and not may_read(file):
        problem = f"{path}: not read, because it is private or outside the folder of what is only looked at"
        raise UserError(problem, hint="--trust, if you trust what names it")
    try:
        text = read_text(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str = "the YAML") -> Any:
    """Parse text. A tab before a comment, which YAML forbids, is accepted."""
    lines = [_without_tab(line) for line in text.splitlines()]
    return load_yaml("\n".join(lines), name, _Loader)


def _without_tab(line: str) -> str:
    before, tab, comment = line.partition("\t")
    return before if tab and before.strip() and comment.lstrip().startswith("#") else line


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key, value = loader.construct_object(key_node, deep=True), loader.construct_object(value_node, deep=True)
        if isinstance(key, list | dict | set):
            raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key_node.start_mark)
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
