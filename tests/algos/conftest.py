"""A ragged batch with awkward rows: empty, of one token, all observations, observations inside and at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Columns:
    lengths: Tensor
    mask: Tensor
    groups: Tensor
    generator: torch.Generator

    def noise(self, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(int(self.lengths.sum()), generator=self.generator, dtype=torch.float64)

    def rows(self, flat: Tensor) -> list[list[float]]:
        return [row.tolist() for row in flat.split(self.lengths.tolist())]


@pytest.fixture
def columns() -> Columns:
    generator = torch.Generator().manual_seed(11)
    lengths = torch.tensor([5, 0, 7, 1, 3, 9, 4, 2, 6, 1])
    mask = (torch.rand(int(lengths.sum()), generator=generator) > 0.3).long()
    ends = lengths.cumsum(0)
    mask[ends[3] : ends[4]] = 0  # row 4 is observations only
    mask[ends[5] - 2 : ends[5]] = 0  # row 5 ends in an observation
    mask[ends[2]] = 1
    groups = torch.tensor([40, 40, 40, 7, 7, 7, 7, 3, 40, 5])
    return Columns(lengths, mask, groups, generator)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.entries = max([self.entries, *(x.numel() for x in made if isinstance(x, Tensor))])
        return result


@pytest.fixture
def largest_tensor() -> LargestTensor:
    return LargestTensor()


@pytest.fixture
def long_row() -> Columns:
    """One row of 32,768 tokens among 1,000 of 30: 62,768 tokens, 33 million slots of a padded matrix."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.full((1001,), 30)
    lengths[7] = 32_768
    mask = (torch.rand(int(lengths.sum()), generator=generator) > 0.1).long()
    return Columns(lengths, mask, torch.arange(1001) // 7, generator)
