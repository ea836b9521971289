"""The rows with their scores, as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from burnish.data.files import ArrowRows, Rows, as_table, write_table
from burnish.errors import UserError
from burnish.jobs.eval.measure import Scored
from burnish.registry import Registry

KEY = "data.output_path"
COLUMNS = ("scores", "reward_extras", "reward_problems")

OUTPUTS = Registry("output format", key=KEY)


def check_output(out: str, rows: Rows) -> None:
    """Before anything is scored: the ending, and columns that would be there twice."""
    suffix = Path(out).suffix
    if suffix not in OUTPUTS:
        problem = f"cannot write {suffix or 'a file without an ending'}"
        hint = f"{KEY}={Path(out).with_suffix('.parquet')}"
        raise UserError(problem, key=KEY, value=out, allowed=OUTPUTS.names(), hint=hint)
    taken = [name for name in COLUMNS if name in rows.kinds]
    if taken:
        raise UserError(f"{rows.name} has a column {taken[0]!r} already", key=KEY, value=out)


def write_scored(rows: Rows, scored: Sequence[Scored], out: str) -> None:
    """Whole or not at all."""
    write: Callable[[Rows, Sequence[Scored], Path], None] = OUTPUTS[Path(out).suffix].load()
    write(rows, scored, Path(out).expanduser())


@OUTPUTS.register(".parquet")
def write_parquet(rows: Rows, scored: Sequence[Scored], path: Path) -> None:
    """The extras are JSON text: those of different rewards fit no common type."""
    columns = {
        "scores": [row.scores for row in scored],
        "reward_extras": [[json.dumps(extras) for extras in row.extras] for row in scored],
        "reward_problems": [[problem or "" for problem in row.problems] for row in scored],
    }
    if isinstance(rows, ArrowRows):  # its columns keep their types
        table = rows.table
        for name, values in columns.items():
            table = table.append_column(name, [values])
    else:
        new = ({name: values[number] for name, values in columns.items()} for number in range(len(rows)))
        table = as_table([{**rows.row(number), **more} for number, more in enumerate(new)], path, KEY)
    write_table(table, path, KEY)


@OUTPUTS.register(".jsonl")
def write_lines(rows: Rows, scored: Sequence[Scored], path: Path) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            for number, row in enumerate(scored):
                file.write(json.dumps({**rows.row(number), **_plain(row)}, ensure_ascii=False, default=str) + "\n")
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"cannot write: {error}", key=KEY, value=str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def _plain(row: Scored) -> dict[str, Any]:
    return dict(zip(COLUMNS, (row.scores, row.extras, row.problems), strict=True))
