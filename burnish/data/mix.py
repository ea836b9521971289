"""MixedRows: several datasets interleaved with given probabilities, in an order that depends on the seed only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnish.data.files import Rows, check_parts, short_hash
from burnish.errors import UserError
from burnish.seeding import derive_seed

KEY = "data.train_probs"
DRAWS = 4096  # per call of multinomial


def mixed_order(sizes: Sequence[int], weights: Sequence[float], seed: int) -> list[tuple[int, int]]:
    """(part, row) until every part is exhausted once; a part that ends earlier starts again."""
    generator = torch.Generator().manual_seed(derive_seed("mix", seed))
    probabilities = torch.tensor(weights, dtype=torch.float64)
    order: list[tuple[int, int]] = []
    used = [0] * len(sizes)
    exhausted: set[int] = set()
    while True:
        for part in torch.multinomial(probabilities, DRAWS, replacement=True, generator=generator).tolist():
            order.append((part, used[part] % sizes[part]))
            used[part] += 1
            exhausted |= {part} if used[part] >= sizes[part] else set()
            if len(exhausted) == len(sizes):
                return order


class MixedRows:
    """Rows of several parts in mixed order. A repeated row has several numbers, and so several uids."""

    def __init__(self, parts: Sequence[Rows], weights: Sequence[float], seed: int, key: str) -> None:
        check_parts(parts, key)
        if len(weights) != len(parts):
            problem = f"{len(weights)} probabilities for the {len(parts)} datasets of {key}"
            raise UserError(problem, key=KEY, value=list(weights), allowed="one per dataset")
        self.parts = list(parts)
        self.order = mixed_order([len(part) for part in parts], weights, seed)
        self.name = ", ".join(part.name for part in parts)
        content = repr(([part.fingerprint for part in parts], [float(weight) for weight in weights], seed))
        self.fingerprint = short_hash(content.encode())
        self.kinds = parts[0].kinds

    def __len__(self) -> int:
        return len(self.order)

    def row(self, number: int) -> dict[str, Any]:
        part, within = self.order[number]
        return self.parts[part].row(within)

    def values(self, column: str) -> set[Any]:
        return set().union(*(part.values(column) for part in self.parts))

    def where(self, number: int) -> str:
        part, within = self.order[number]
        return self.parts[part].where(within)
