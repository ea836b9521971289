"""A few rows: the first ones of the real files where they are here, else made ones of the schema that is asked for."""

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
from burnish.rehearsal.made import MADE
from burnish.rehearsal.plan import DATA, Plan

ROWS = 32  # read from each real file
VAL_ROWS = 4
# Files of each job: key, how many rows are wanted.
FILES = {
    "train": (("data.train_files", ROWS), ("data.val_files", VAL_ROWS)),
    "sft": (("data.train_files", ROWS), ("data.val_files", VAL_ROWS)),
    "eval": (("data.path", VAL_ROWS),),
    "generate": (("data.path", VAL_ROWS),),
}


def place_rows(plan: Plan) -> None:
    """Put files of a few rows in the place of the user's, and say which are real."""
    for key, count in FILES[plan.job]:
        given = plan.value(key)
        names = [given] if isinstance(given, str) else list(given or ())
        if not names:
            continue
        placed = _place(plan, key, names, count)
        plan.put(key, placed[0] if isinstance(given, str) else placed)
    for key in ("data.train_max_samples", "data.val_max_samples", "data.train_probs"):
        if plan.has(key):
            plan.drop(key)


def _place(plan: Plan, key: str, names: Sequence[str], count: int) -> list[str]:
    if "" in names:
        plan.find(DATA, UserError("a name is empty; was a shell variable not set?", key=key, value=""))
    real = [name for name in names if exists(name)]
    heads = [_head(plan, key, name, count, number) for number, name in enumerate(real)]
    if heads and None not in heads:
        return heads
    plan.made_rows = True
    placed = []
    for number, name in enumerate(names):
        out = plan.folder / "data" / f"{key.rpartition('.')[2]}_{number}" / f"{stem(name) or 'rows'}.parquet"
        rows, what = MADE[plan.job](plan.asked, name, count)
        write_parquet(rows, out)
        placed.append(str(out))
        plan.stand_ins.append(f"{key} {name}: not here, so {count} made rows ({what})")
    return placed


def exists(name: str) -> bool:
    """Is it on this machine? A bare "./" is a place to fill in, not a file."""
    path = Path(local(name)).expanduser()
    return path != Path() and path.exists()


def local(name: str) -> str:
    return name.removeprefix("file://")


def stem(name: str) -> str:
    """The name of a dataset: without the folder that a hub dataset is read from, and without a known ending."""
    first = name.partition("@")[0].rstrip("/")
    path = Path(first)
    return path.stem if path.suffix in HEADS else path.name


def _head(plan: Plan, key: str, name: str, count: int, number: int) -> str | None:
    """A file of the first rows; what has another form is read as it is. None for a file that cannot be read."""
    path = Path(local(name)).expanduser()
    if not path.is_file() or path.suffix not in HEADS:
        plan.stand_ins.append(f"{key} {name}: read as it is")
        return name
    out = plan.folder / "data" / f"{key.rpartition('.')[2]}_{number}" / path.name
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        found, total = HEADS[path.suffix](path, out, count)
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        plan.find(DATA, UserError(f"cannot be read: {error}", key=key, value=name))
        return None
    plan.stand_ins.append(f"{key} {name}: its first {found} of {total} rows")
    return str(out)


def parquet_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    """How many rows were written, and how many there are."""
    file = pq.ParquetFile(path)
    batch = next(file.iter_batches(batch_size=count), None)
    table = pa.Table.from_batches([] if batch is None else [batch], schema=file.schema_arrow)
    pq.write_table(_filled(table, count), out)
    return min(len(table), count), str(file.metadata.num_rows)


def lines_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    with path.open(encoding="utf-8") as file:
        lines = list(itertools.islice((line for line in file if line.strip()), count + 1))
    out.write_text("".join(line.rstrip("\n") + "\n" for line in filled(lines[:count], count)), encoding="utf-8")
    return min(len(lines), count), str(len(lines)) if len(lines) <= count else "many"


def json_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return lines_head(path, out, count)
    rows = content if isinstance(content, list) else [content]
    out.write_text(json.dumps(filled(rows[:count], count)), encoding="utf-8")
    return min(len(rows), count), str(len(rows))


def csv_head(path: Path, out: Path, count: int) -> tuple[int, str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(itertools.islice(csv.reader(file), count + 2))
    with out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*rows[:1], *filled(rows[1 : count + 1], count)])
    return min(len(rows) - 1, count), str(len(rows) - 1) if len(rows) < count + 2 else "many"


def filled(rows: Sequence[Any], count: int) -> list[Any]:
    """As many rows as are wanted: a short file is read again from its start."""
    return list(itertools.islice(itertools.cycle(rows), count)) if rows else []


def _filled(table: pa.Table, count: int) -> pa.Table:
    if not 0 < len(table) < count:
        return table
    return pa.concat_tables([table] * (-(-count // len(table)))).slice(0, count)


def count_rows(name: str, enough: int) -> int | None:
    """Rows of a file, up to `enough`; None where that is not cheap to say."""
    path = Path(local(name)).expanduser()
    counters: dict[str, Callable[[], int]] = {
        ".parquet": lambda: pq.ParquetFile(path).metadata.num_rows,
        ".jsonl": lambda: _count_lines(path, enough),
    }
    if not path.is_file() or path.suffix not in counters:
        return None
    try:
        return counters[path.suffix]()
    except (pa.ArrowException, OSError):  # reading it will say so
        return None


def _count_lines(path: Path, enough: int) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in itertools.islice((line for line in file if line.strip()), enough))


# By ending: (file, where to, how many rows) -> how many were written, and how many there are.
HEADS: dict[str, Callable[[Path, Path, int], tuple[int, str]]] = {
    ".parquet": parquet_head,
    ".jsonl": lines_head,
    ".json": json_head,
    ".csv": csv_head,
}
