"""ExtendedRows: the rows of the files, and rows appended during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.data.files import Rows


class ExtendedRows:
    """New rows come last, so a row's number never changes. The fingerprint stays that of the files."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.appended: list[dict[str, Any]] = []
        self.origin = ""
        self.name = rows.name
        self.fingerprint = rows.fingerprint
        self.kinds = rows.kinds

    def add(self, rows: Sequence[Mapping[str, Any]], origin: str) -> list[int]:
        """Append rows; returns their numbers."""
        start = len(self)
        self.appended += [dict(row) for row in rows]
        self.origin = origin
        return list(range(start, len(self)))

    def __len__(self) -> int:
        return len(self.rows) + len(self.appended)

    def row(self, number: int) -> dict[str, Any]:
        within = number - len(self.rows)
        return self.rows.row(number) if within < 0 else dict(self.appended[within])

    def values(self, column: str) -> set[Any]:
        return self.rows.values(column) | {row.get(column) for row in self.appended}

    def where(self, number: int) -> str:
        within = number - len(self.rows)
        return self.rows.where(number) if within < 0 else f"{self.origin}, row {within}"
