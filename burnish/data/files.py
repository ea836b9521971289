"""Data files as rows with random access: parquet, arrow, JSON lines, JSON and CSV."""

from __future__ import annotations

import bisect
import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.storage import is_remote, local_path
from burnish.untrusted import parse_json

FORMATS = Registry("data file format", key="data.train_files")


@runtime_checkable
class Rows(Protocol):
    """Rows by number. `fingerprint` is a short hash of the content; `kinds` maps each column to its kind of value."""

    name: str
    fingerprint: str
    kinds: dict[str, str]

    def __len__(self) -> int: ...

    def row(self, number: int) -> dict[str, Any]: ...

    def values(self, column: str) -> set[Any]:
        """The distinct values of a column."""
        ...

    def where(self, number: int) -> str:
        """The row's location, for messages: "train.parquet, row 3"."""
        ...


class ArrowRows:
    """Rows of one arrow table; a row is converted to Python objects when it is read."""

    def __init__(self, table: pa.Table, name: str, fingerprint: str) -> None:
        self.table = table
        self.name = name
        self.fingerprint = fingerprint
        self.kinds = {field.name: arrow_kind(field.type) for field in table.schema}

    def __len__(self) -> int:
        return self.table.num_rows

    def row(self, number: int) -> dict[str, Any]:
        return self.table.slice(number, 1).to_pylist()[0]

    def values(self, column: str) -> set[Any]:
        try:
            return set(self.table.column(column).unique().to_pylist())
        except (pa.ArrowException, TypeError) as error:
            raise _several_values(self.name, column) from error

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"


class LineRows:
    """Rows of a JSON lines file, kept as text: compact, and without a common type for each column."""

    def __init__(self, lines: list[bytes], kinds: dict[str, str], name: str, fingerprint: str) -> None:
        self.lines = lines
        self.name = name
        self.fingerprint = fingerprint
        self.kinds = kinds

    def __len__(self) -> int:
        return len(self.lines)

    def row(self, number: int) -> dict[str, Any]:
        return json.loads(self.lines[number])

    def values(self, column: str) -> set[Any]:
        return _distinct((self.row(number).get(column) for number in range(len(self))), self.name, column)

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"


EXAMPLE_ROWS = '[{"prompt": "1+1=", "data_source": "sums", "reward_model": {"ground_truth": "2"}}]'


def _check_is_list(rows: Any, name: str) -> None:
    """Refuse what is no sequence of rows: a DatasetDict of all splits, a file name, a DataFrame, an iterator."""
    hint = None
    if isinstance(rows, Mapping):
        hint = f"{name}={name}[{next(iter(rows), 'train')!r}], if these are splits, or {name}={EXAMPLE_ROWS}"
    elif isinstance(rows, str | Path):
        hint = f"data.train_files={rows}, or {name}={EXAMPLE_ROWS}"
    elif hasattr(rows, "iloc"):  # of pandas
        hint = f'{name}={name}.to_dict("records")'
    elif not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        hint = f"{name}=list({name})"
    if hint is not None:
        raise UserError(f"{name} must be a list of dicts, not {type(rows).__name__}", hint=hint)


class ListRows:
    """Rows that are Python objects: a list of dicts, or a sequence like it."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], name: str = "dataset", fingerprint: str | None = None
    ) -> None:
        _check_is_list(rows, name)
        if len(rows) == 0:
            raise UserError(f"{name} has no rows")
        if not isinstance(rows[0], Mapping):
            problem = f"the rows of {name} must be dicts, row 0 is {type(rows[0]).__name__}"
            raise UserError(problem, hint=f"{name}={EXAMPLE_ROWS}")
        self.rows = rows
        self.name = name
        self.fingerprint = fingerprint or fingerprint_of(rows[number] for number in range(len(rows)))
        self.kinds = {}
        for number in range(len(rows)):
            add_kinds(self.kinds, rows[number])

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        return dict(self.rows[number])

    def values(self, column: str) -> set[Any]:
        return _distinct((self.rows[number].get(column) for number in range(len(self))), self.name, column)

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"


class JoinedRows:
    """Rows of several files, in order."""

    def __init__(self, parts: list[Rows]) -> None:
        self.parts = parts
        self.name = ", ".join(part.name for part in parts)
        self.fingerprint = short_hash("".join(part.fingerprint for part in parts).encode())
        self.kinds = parts[0].kinds
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] + len(part))

    def __len__(self) -> int:
        return self.starts[-1]

    def _find(self, number: int) -> tuple[Rows, int]:
        part = bisect.bisect_right(self.starts, number) - 1
        return self.parts[part], number - self.starts[part]

    def row(self, number: int) -> dict[str, Any]:
        part, within = self._find(number)
        return part.row(within)

    def values(self, column: str) -> set[Any]:
        return set().union(*(part.values(column) for part in self.parts))

    def where(self, number: int) -> str:
        part, within = self._find(number)
        return part.where(within)


def _distinct(values: Iterable[Any], name: str, column: str) -> set[Any]:
    try:
        return set(values)
    except TypeError as error:  # lists and dicts cannot be compared like names
        raise _several_values(name, column) from error


def _several_values(name: str, column: str) -> UserError:
    return UserError(f"{name}: the values of {column!r} must be text or numbers, not lists or objects")


def read_files(files: Sequence[str], key: str = "data.train_files", use_shm: bool = False) -> Rows:
    """The rows of all files, concatenated. The files must have the same columns."""
    return join_rows([read_file(file, key, use_shm) for file in files], key)


def join_rows(parts: Sequence[Rows], key: str) -> Rows:
    """The concatenated rows of all parts."""
    check_parts(parts, key)
    return parts[0] if len(parts) == 1 else JoinedRows(list(parts))


def check_parts(parts: Sequence[Rows], key: str) -> None:
    """Require at least one part, and equal columns."""
    if not parts:
        raise UserError("no data files", key=key, hint=f"{key}=/path/to/rows.parquet")
    for part in parts[1:]:
        _check_same_columns(parts[0], part, key)


def read_file(file: str, key: str = "data.train_files", use_shm: bool = False) -> Rows:
    """The rows of one file, by its suffix. A remote file is downloaded first."""
    path = Path(local_path(file, key=key) if is_remote(file) else file.removeprefix("file://")).expanduser()
    if path.is_dir():
        raise UserError("a folder, not a file", key=key, value=file, hint=f"{key}={file.rstrip('/')}/train.parquet")
    if not path.is_file():
        raise UserError("no such file", key=key, value=file, hint=f"{key}=/path/to/rows.parquet")
    if path.suffix not in FORMATS:
        raise UserError(
            f"cannot read {path.suffix or 'a file without a suffix'}", key=key, value=file, allowed=FORMATS.names()
        )
    name = file if is_remote(file) else str(path)  # what the user typed, not the cached copy
    if use_shm:
        path = Path(local_path(str(path), key=key, use_shm=True))
    rows: Rows = FORMATS[path.suffix].load()(path, key, name)
    if len(rows) == 0:
        raise UserError("the file has no rows", key=key, value=file)
    return rows


@FORMATS.register(".parquet")
def read_parquet(path: Path, key: str, name: str) -> Rows:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"not a readable parquet file: {error}", key=key, value=name) from error
    return ArrowRows(table, name, fingerprint_of_file(path))


@FORMATS.register(".arrow")
def read_arrow(path: Path, key: str, name: str) -> Rows:
    """Arrow's stream format, which Hugging Face datasets use, or its file format."""
    try:
        try:
            table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"not a readable arrow file: {error}", key=key, value=name) from error
    return ArrowRows(table, name, fingerprint_of_file(path))


@FORMATS.register(".jsonl")
def read_json_lines(path: Path, key: str, name: str) -> Rows:
    lines: list[bytes] = []
    kinds: dict[str, str] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, f"line {number}")
        except UserError as error:
            raise UserError(error.problem, key=key, value=name) from error
        if not isinstance(row, dict):
            raise UserError(f"line {number} is a {type(row).__name__}, not an object", key=key, value=name)
        add_kinds(kinds, row)
        lines.append(line)
    return LineRows(lines, kinds, name, fingerprint_of_file(path))


@FORMATS.register(".json")
def read_json(path: Path, key: str, name: str) -> Rows:
    """A JSON array of objects, one object, or one object per line."""
    try:
        content = parse_json(path.read_bytes())
    except UserError:
        return read_json_lines(path, key, name)
    rows = content if isinstance(content, list) else [content]
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"row {number} is a {type(row).__name__}, not an object", key=key, value=name)
    if not rows:
        raise UserError("the file has no rows", key=key, value=name)
    return ListRows(rows, name, fingerprint_of_file(path))


@FORMATS.register(".csv")
def read_csv(path: Path, key: str, name: str) -> Rows:
    """Columns by the header; values stay strings ("007" is not a number)."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"not a readable CSV file: {error}", key=key, value=name) from error
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            problem = f"row {number} has {'more' if None in row else 'fewer'} values than there are columns"
            raise UserError(problem, key=key, value=name)
    if not rows:
        raise UserError("the file has no rows", key=key, value=name)
    return ListRows(rows, name, fingerprint_of_file(path))


def folder_of(rows: Rows, number: int) -> str:
    """The folder of the file that a row is from, for relative paths in it; "" if it is from no file."""
    name = rows.where(number).rpartition(", ")[0]  # `where` says "FILE, row NUMBER"
    if is_remote(name):
        return name.rpartition("/")[0]
    path = Path(name)
    return str(path.parent) if path.is_file() else name if name and path.is_dir() else ""


def write_parquet(rows: list[dict[str, Any]], out: str | Path) -> None:
    """Write rows as one parquet file, atomically."""
    parquet_path(out, "OUT")
    write_table(as_table(rows, out, "OUT"), out, "OUT")


def write_with_column(rows: Rows, name: str, values: list[Any], out: str | Path, key: str) -> None:
    """Write the rows with one more column as a parquet file. Columns of an arrow table keep their types."""
    if isinstance(rows, ArrowRows):
        table = rows.table.append_column(name, [values])
    else:
        extended = [{**rows.row(number), name: value} for number, value in enumerate(values)]
        table = as_table(extended, out, key)
    write_table(table, out, key)


def parquet_path(out: str | Path, key: str) -> Path:
    path = Path(out).expanduser()
    if path.suffix != ".parquet":
        renamed = path.with_suffix(".parquet")
        hint = f"{key}={renamed}" if "." in key else str(renamed)  # of a setting, or an argument such as OUT
        raise UserError("the output must be a parquet file", key=key, value=str(out), hint=hint)
    return path


def as_table(rows: list[dict[str, Any]], out: str | Path, key: str) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows)
    except pa.ArrowException as error:
        raise UserError(f"the rows do not fit one parquet schema: {error}", key=key, value=str(out)) from error


def write_table(table: pa.Table, out: str | Path, key: str) -> None:
    """Write a temporary file, then rename it."""
    path = parquet_path(out, key)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write: {error}", key=key, value=str(out)) from error
    finally:
        temporary.unlink(missing_ok=True)


def arrow_kind(kind: pa.DataType) -> str:
    """The coarse kind of a column: files may differ in integer width or in the fields of a struct."""
    tests = {
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
        "object": (pa.types.is_struct, pa.types.is_map),
        "truth value": (pa.types.is_boolean,),
        "nothing": (pa.types.is_null,),
    }
    if pa.types.is_dictionary(kind):
        return arrow_kind(kind.value_type)
    return next((name for name, is_kind in tests.items() if any(test(kind) for test in is_kind)), str(kind))


def value_kind(value: object) -> str:
    """The same for a Python value."""
    if isinstance(value, bool):  # before int: a bool is one
        return "truth value"
    kinds = {str: "text", (int, float): "number", (list, tuple): "list", Mapping: "object", type(None): "nothing"}
    return next((name for types, name in kinds.items() if isinstance(value, types)), type(value).__name__)


def add_kinds(kinds: dict[str, str], row: Mapping[str, Any]) -> None:
    """Record the kind of each column, from the first row with a value."""
    for name, value in row.items():
        if kinds.get(name, "nothing") == "nothing":
            kinds[name] = value_kind(value)


def _check_same_columns(first: Rows, other: Rows, key: str) -> None:
    problem = f"{first.name} and {other.name} do not have the same columns"
    only = {rows.name: sorted(rows.kinds.keys() - rest.kinds.keys()) for rows, rest in ((first, other), (other, first))}
    if any(only.values()):
        details = "; ".join(f"only in {name}: {', '.join(columns)}" for name, columns in only.items() if columns)
        raise UserError(f"{problem}: {details}", key=key, hint="burnish data check FILE shows the columns of each")
    for column, kind in first.kinds.items():
        if kind != other.kinds[column] and "nothing" not in (kind, other.kinds[column]):
            raise UserError(
                f"{problem}: {column!r} holds {kind} in one and {other.kinds[column]} in the other", key=key
            )


def short_hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def fingerprint_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=6)).hexdigest()


def fingerprint_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Hash of rows that are Python objects; equal rows have equal hashes in every process."""
    digest = hashlib.blake2b(digest_size=6)
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=_plain).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """JSON for arrays, bytes and other objects; never a memory address, which differs between processes."""
    if isinstance(value, bytes):
        return short_hash(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "tobytes"):  # a Pillow image
        return [str(getattr(value, "size", "")), short_hash(value.tobytes())]
    return type(value).__qualname__
