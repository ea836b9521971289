"""GrownRows: the rows of the files and those that were made after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.data.files import Rows


class GrownRows:
    """The number of a row never changes: new rows come after all others. The fingerprint stays that of the files."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.made: list[dict[str, Any]] = []
        self.maker = ""
        self.name = rows.name
        self.fingerprint = rows.fingerprint
        self.kinds = rows.kinds

    def add(self, rows: Sequence[Mapping[str, Any]], maker: str) -> list[int]:
        """Append rows; their numbers."""
        start = len(self)
        self.made += [dict(row) for row in rows]
        self.maker = maker
        return list(range(start, len(self)))

    def __len__(self) -> int:
        return len(self.rows) + len(self.made)

    def row(self, number: int) -> dict[str, Any]:
        within = number - len(self.rows)
        return self.rows.row(number) if within < 0 else dict(self.made[within])

    def values(self, column: str) -> set[Any]:
        return self.rows.values(column) | {row.get(column) for row in self.made}

    def where(self, number: int) -> str:
        within = number - len(self.rows)
        return self.rows.where(number) if within < 0 else f"{self.maker}, row {within}"
