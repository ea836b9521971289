"""Replace data files by their first rows or, where they are not local, by synthetic rows."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.data.files import write_parquet
from burnish.errors import UserError
from burnish.rehearsal.plan import DATA, Plan
from burnish.rehearsal.synthetic import SYNTHETIC_ROWS, has_pictures, with_picture
from burnish.untrusted import parse_json

ROWS = 32  # of each file
VAL_ROWS = 4
# By job: (key of the files, row count).
FILES = {
    "train": (("data.train_files", ROWS), ("data.val_files", VAL_ROWS)),
    "sft": (("data.train_files", ROWS), ("data.val_files", VAL_ROWS)),
    "eval": (("data.path", VAL_ROWS),),
    "generate": (("data.path", VAL_ROWS),),
}


def replace_rows(plan: Plan) -> None:
    """Put small files under the data keys, with a line on the origin of each."""
    for key, count in FILES[plan.job]:
        files = plan.value(key)
        names = [files] if isinstance(files, str) else list(files or ())
        if not names:
            continue
        small = _small_files(plan, key, names, count)
        plan.put(key, small[0] if isinstance(files, str) else small)
    for key in ("data.train_max_samples", "data.val_max_samples", "data.train_probs"):
        if plan.has(key):
            plan.drop(key)


def _small_files(plan: Plan, key: str, names: Sequence[str], count: int) -> list[str]:
    if "" in names:
        plan.add_finding(DATA, UserError("empty file name (is a shell variable unset?)", key=key, value=""))
    local = [name for name in names if exists(name)]
    heads = [_head(plan, key, name, count, number) for number, name in enumerate(local)]
    written = [head for head in heads if head is not None]
    if heads and len(written) == len(heads):
        return written
    plan.synthetic_rows = True
    written = []
    for number, name in enumerate(names):
        out = plan.folder / "data" / f"{key.rpartition('.')[2]}_{number}" / f"{stem(name) or 'rows'}.parquet"
        rows, description = SYNTHETIC_ROWS[plan.job](plan.cfg, name, count)
        if plan.sees and has_pictures(plan.cfg, plan.settings, name):
            rows, description = [with_picture(row, plan.cfg, n) for n, row in enumerate(rows)], f"{description}, images"
        write_parquet(rows, out)
        written.append(str(out))
        plan.stand_ins.append(f"{key} {name}: not on this machine, replaced by {count} synthetic rows ({description})")
    return written


def exists(name: str) -> bool:
    """Whether a path is on this machine. A bare "./" is a placeholder, not a path."""
    path = Path(local_path(name)).expanduser()
    return path != Path() and path.exists()


def local_path(name: str) -> str:
    return name.removeprefix("file://")


def stem(name: str) -> str:
    """A dataset's name, without the subfolder after `@` and without a known suffix."""
    path = Path(name.partition("@")[0].rstrip("/"))
    return path.stem if path.suffix in HEADS else path.name


def _head(plan: Plan, key: str, name: str, count: int, number: int) -> str | None:
    """Write the first rows to a new file; folders and other formats are used as they are. None if unreadable."""
    path = Path(local_path(name)).expanduser()
    if not path.is_file() or path.suffix not in HEADS:
        plan.stand_ins.append(f"{key} {name}: used as it is")
        return name
    out = plan.folder / "data" / f"{key.rpartition('.')[2]}_{number}" / path.name
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        written, total = HEADS[path.suffix](path, out, count)
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        plan.add_finding(DATA, UserError(f"cannot read the file: {error}", key=key, value=name))
        return None
    plan.stand_ins.append(f"{key} {name}: the first {written} of {total} rows")
    return str(out)


def parquet_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    """Returns the number of rows written, and of rows in the file."""
    file = pq.ParquetFile(path)
    batch = next(file.iter_batches(batch_size=count), None)
    table = pa.Table.from_batches([] if batch is None else [batch], schema=file.schema_arrow)
    pq.write_table(_repeated_table(table, count), out)
    return min(len(table), count), str(file.metadata.num_rows)


def lines_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    with path.open(encoding="utf-8") as file:
        lines = list(itertools.islice((line for line in file if line.strip()), count + 1))
    out.write_text("".join(line.rstrip("\n") + "\n" for line in repeated(lines[:count], count)), encoding="utf-8")
    return min(len(lines), count), str(len(lines)) if len(lines) <= count else "many"


def json_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    try:
        content = parse_json(path.read_bytes())
    except UserError:
        return lines_head(path, out, count)
    rows = content if isinstance(content, list) else [content]
    out.write_text(json.dumps(repeated(rows[:count], count)), encoding="utf-8")
    return min(len(rows), count), str(len(rows))


def csv_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(itertools.islice(csv.reader(file), count + 2))
    with out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*rows[:1], *repeated(rows[1 : count + 1], count)])
    return min(len(rows) - 1, count), str(len(rows) - 1) if len(rows) < count + 2 else "many"


def repeated(rows: Sequence[Any], count: int) -> list[Any]:
    """Repeat the rows of a short file up to `count`."""
    return list(itertools.islice(itertools.cycle(rows), count)) if rows else []


def _repeated_table(table: pa.Table, count: int) -> pa.Table:
    if not 0 < len(table) < count:
        return table
    return pa.concat_tables([table] * (-(-count // len(table)))).slice(0, count)


def count_rows(name: str, limit: int) -> int | None:
    """Rows of a file, counted up to `limit`; None where counting is not cheap."""
    path = Path(local_path(name)).expanduser()
    counters: dict[str, Callable[[], int]] = {
        ".parquet": lambda: pq.ParquetFile(path).metadata.num_rows,
        ".jsonl": lambda: _count_lines(path, limit),
    }
    if not path.is_file() or path.suffix not in counters:
        return None
    try:
        return counters[path.suffix]()
    except (pa.ArrowException, OSError):  # reported when the file is read
        return None


def _count_lines(path: Path, limit: int) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in itertools.islice((line for line in file if line.strip()), limit))


# By suffix: (file, output, row count) -> rows written, rows in the file.
HEADS: dict[str, Callable[[Path, Path, int], tuple[int, str]]] = {
    ".parquet": parquet_head,
    ".jsonl": lines_head,
    ".json": json_head,
    ".csv": csv_head,
}
