"""DefaultSourceRows: rows without a data source column get their dataset's name as the source."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from burnish.data.files import Rows


class DefaultSourceRows:
    """Adds a constant column: a file's name without suffix, or the name of a dataset."""

    def __init__(self, rows: Rows, column: str) -> None:
        self.rows = rows
        self.column = column
        self.source = PurePosixPath(rows.name).stem
        self.name = rows.name
        self.fingerprint = rows.fingerprint
        self.kinds = {**rows.kinds, column: "text"}

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        return {**self.rows.row(number), self.column: self.source}

    def values(self, column: str) -> set[Any]:
        return {self.source} if column == self.column else self.rows.values(column)

    def where(self, number: int) -> str:
        return self.rows.where(number)
