"""Write the rows with their scores to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from burnish.data.files import ArrowRows, Rows, as_table, write_table
from burnish.errors import UserError
from burnish.escape import escape
from burnish.jobs.eval.measure import ScoredRow
from burnish.registry import Registry

KEY = "data.output_path"
COLUMNS = ("scores", "reward_extras", "reward_problems")

OUTPUTS = Registry("output format", key=KEY)


def check_output(out: str, rows: Rows) -> None:
    """Check the file extension and for column conflicts, before scoring."""
    suffix = Path(out).suffix
    if suffix not in OUTPUTS:
        problem = f"cannot write {suffix or 'a file without an extension'}"
        hint = f"{KEY}={Path(out).with_suffix('.parquet')}"
        raise UserError(problem, key=KEY, value=out, allowed=OUTPUTS.names(), hint=hint)
    conflicts = [name for name in COLUMNS if name in rows.kinds]
    if conflicts:
        raise UserError(f"{rows.name} already has a column {conflicts[0]!r}", key=KEY, value=out)


def write_scored(rows: Rows, scored: Sequence[ScoredRow], out: str) -> None:
    """Write the file atomically."""
    write: Callable[[Rows, Sequence[ScoredRow], Path], None] = OUTPUTS[Path(out).suffix].load()
    write(rows, scored, Path(out).expanduser())


@OUTPUTS.register(".parquet")
def write_parquet(rows: Rows, scored: Sequence[ScoredRow], path: Path) -> None:
    """Extras are stored as JSON text, because those of different rewards have no common type."""
    columns = {
        "scores": [row.scores for row in scored],
        "reward_extras": [[json.dumps(extras) for extras in row.extras] for row in scored],
        "reward_problems": [[problem or "" for problem in row.problems] for row in scored],
    }
    if isinstance(rows, ArrowRows):  # keep the column types
        table = rows.table
        for name, values in columns.items():
            table = table.append_column(name, [values])
    else:
        added = ({name: values[number] for name, values in columns.items()} for number in range(len(rows)))
        table = as_table([{**rows.row(number), **values} for number, values in enumerate(added)], path, KEY)
    write_table(table, path, KEY)


@OUTPUTS.register(".jsonl")
def write_lines(rows: Rows, scored: Sequence[ScoredRow], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            for number, row in enumerate(scored):
                line = json.dumps({**rows.row(number), **_plain(row)}, ensure_ascii=False, default=str)
                file.write(f"{escape(line)}\n")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write: {error}", key=KEY, value=str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _plain(row: ScoredRow) -> dict[str, Any]:
    return dict(zip(COLUMNS, (row.scores, row.extras, row.problems), strict=True))
