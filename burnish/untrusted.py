"""Readers for files and text that others may have written (checkpoints, model folders, datasets, configs of scripts).

Everything is bounded: only regular files are opened, up to a size; JSON and YAML have limits on nesting, and YAML on
what its aliases expand to. A violation is a UserError that names the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from burnish.errors import UserError

MAX_CONFIG_BYTES = 16 * 2**20  # of a config, a manifest or another file that is small by nature
MAX_DEPTH = 100  # of nested lists and mappings
MAX_YAML_NODES = 200_000  # with aliases expanded
MAX_INTEGER = 2**63 - 1  # of strict JSON
_PRIVATE_NAME = re.compile(
    r"""id_(rsa|dsa|ecdsa|ed25519)\b.*
      | .*\.(pem|key|p12|pfx|jks|kdbx?|ppk|gpg|asc|keytab|ovpn|env)
      | .*(secret|credential|passw|passphrase|api_?key|private_?key|tokens?(?!iz)([._-]|$)).*
      | _?netrc | kubeconfig.* | known_hosts.* | authorized_keys.* | shadow.* | .*_history
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CACHES = {".cache", ".local"}  # hidden folders with models, data and libraries


def is_private_name(name: str) -> bool:
    """Whether a file or folder of this name may hold secrets: it is hidden, or named like a key."""
    return name.startswith(".") or _PRIVATE_NAME.fullmatch(name) is not None


def is_private_path(path: str | Path) -> bool:
    """Whether a path leads through such a name, also where it is a link."""
    paths = (Path(path).expanduser(), Path(os.path.realpath(Path(path).expanduser())))
    parts = {part for each in paths for part in each.parts if part not in (".", "..")}
    return any(is_private_name(part) for part in parts - _CACHES)


def is_project_folder(folder: Path) -> bool:
    """Whether a folder may be shown to what is only looked at: not home or above it, not everybody's, not hidden."""
    home = Path(os.environ.get("HOME") or "~").expanduser().resolve()
    try:
        is_everybodys = bool(folder.stat().st_mode & 0o002)  # /tmp
    except OSError:
        return False
    parts = folder.relative_to(home).parts if folder.is_relative_to(home) else ()
    return not home.is_relative_to(folder) and not is_everybodys and not any(map(is_private_name, parts))


def read_bytes(path: str | Path, *, limit: int = MAX_CONFIG_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes. OSError if it cannot be opened."""
    # A FIFO without a writer would block the call, a terminal would become the controlling one.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: not a regular file")
        size, content = status.st_size, b""
        if size <= limit:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
            size = len(content)  # files of /proc have size 0
    finally:
        os.close(descriptor)
    if size > limit:
        raise UserError(f"{path}: {size:,} bytes or more, but a file of its kind has at most {limit:,}")
    return content


def read_text(path: str | Path, *, limit: int = MAX_CONFIG_BYTES) -> str:
    """The same as UTF-8 text."""
    try:
        return read_bytes(path, limit=limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(path: str | Path, *, limit: int = MAX_CONFIG_BYTES, strict: bool = False) -> Any:
    """The JSON value of a file. OSError if it cannot be opened, UserError if it is anything but sane JSON."""
    return parse_json(read_bytes(path, limit=limit), str(path), strict=strict)


def read_json_object(path: str | Path, *, limit: int = MAX_CONFIG_BYTES, strict: bool = False) -> dict[str, Any]:
    """The JSON object of a file."""
    value = read_json(path, limit=limit, strict=strict)
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON {_kind(value)}, not an object")
    return value


def parse_json(text: str | bytes, name: str = "the JSON", *, strict: bool = False) -> Any:
    """Parse JSON whose nesting is at most MAX_DEPTH.

    With `strict`, NaN, Infinity, integers beyond 64 bits and keys that occur twice in an object are errors too.
    """
    try:
        value = _STRICT.decode(_decoded(text)) if strict else json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else f"not valid JSON: {error}"
        raise UserError(f"{name}: {problem}") from error
    marks = ("{", "[") if isinstance(text, str) else (b"{", b"[")
    if sum(text.count(mark) for mark in marks) > MAX_DEPTH:  # type: ignore[arg-type]
        _check_depth(value, name)
    return value


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(json.detect_encoding(text))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return mapping


def _bounded(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_INTEGER:
        raise ValueError("an integer is out of range")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_bounded, parse_constant=_no_constant)


def _kind(value: Any) -> str:
    kinds = {list: "array", str: "string", bool: "truth value", int: "number", float: "number", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def _check_depth(value: Any, name: str) -> None:
    """Without recursion, level by level."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise UserError(f"{name}: nested too deeply, more than {MAX_DEPTH} levels")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from (child for child in node.values() if isinstance(child, dict | list))
    elif isinstance(node, list):
        yield from (child for child in node if isinstance(child, dict | list))


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader: plain values only, and bounded nesting and expansion of aliases.

    PyYAML itself shares what an alias names, but everything that walks, copies or merges the result expands it.
    """

    levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.levels += 1
        if self.levels > MAX_DEPTH:  # before the scanner, which is slow for deep nesting, has seen all of it
            raise yaml.YAMLError(f"nested too deeply, more than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}).entries > MAX_YAML_NODES:
            raise yaml.YAMLError(f"aliases expand to more than {MAX_YAML_NODES:,} entries")
        return self.construct_document(node)


# As for OmegaConf, a date is text: names of experiments are often dates.
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
BoundedLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str, name: str = "the YAML", loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """Parse one YAML document into plain values."""
    if len(text) > MAX_CONFIG_BYTES:
        raise UserError(f"{name}: too large for a config: {len(text):,} characters")
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: invalid YAML: {error}") from error
    except RecursionError as error:
        raise UserError(f"{name}: invalid YAML: nested too deeply") from error
    except ValueError as error:  # dates and numbers that Python does not have
        raise UserError(f"{name}: invalid YAML: {error}") from error


class _Extent(NamedTuple):
    entries: int
    levels: int


def _expanded(node: yaml.Node, known: dict[int, _Extent | None]) -> _Extent:
    """Entries and levels with every alias expanded. YAMLError if that is endless, or nested too deeply."""
    if not isinstance(node, yaml.CollectionNode):
        return _Extent(1, 0)
    if id(node) in known:
        extent = known[id(node)]
        if extent is None:
            raise yaml.YAMLError("an alias contains itself")
        return extent
    known[id(node)] = None
    children = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    extents = [_expanded(child, known) for child in children]
    total = _Extent(1 + sum(e.entries for e in extents), 1 + max((e.levels for e in extents), default=0))
    if total.levels > MAX_DEPTH:
        raise yaml.YAMLError(f"nested too deeply, more than {MAX_DEPTH} levels")
    known[id(node)] = total
    return total
