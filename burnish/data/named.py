"""NamedRows: rows without a data source, to which the name of their dataset is given as one."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from burnish.data.files import Rows


class NamedRows:
    """One more column with one value: a file's name without its ending, or the name of a dataset."""

    def __init__(self, rows: Rows, column: str) -> None:
        self.rows = rows
        self.column = column
        self.own_name = PurePosixPath(rows.name).stem
        self.name = rows.name
        self.fingerprint = rows.fingerprint
        self.kinds = {**rows.kinds, column: "text"}

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        return {**self.rows.row(number), self.column: self.own_name}

    def values(self, column: str) -> set[Any]:
        return {self.own_name} if column == self.column else self.rows.values(column)

    def where(self, number: int) -> str:
        return self.rows.where(number)
