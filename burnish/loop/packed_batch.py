"""PackedBatch: a batch on its way between processes. Integers take as few bytes as their values need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.batch import Batch, Column, Ragged

SMALLER = (np.int8, np.int16, np.int32)
NUMBERS = {torch.int64: np.int64, torch.int32: np.int32}  # types that are packed into smaller ones
BITS = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}  # types that numpy lacks, or that differ, as their bits


@dataclass(frozen=True)
class PackedColumn:
    """A tensor, with the number of its row lengths where it is ragged; or a list of Python objects as they are."""

    values: Any
    dtype: torch.dtype | None = None  # None for a list
    lengths: int | None = None


@dataclass(frozen=True)
class PackedBatch:
    """Arrays keep their memory out of the pickle, so Ray shares them between the processes of a machine."""

    num_rows: int
    lengths: tuple[np.ndarray, ...]  # of ragged columns; most of them share one
    columns: dict[str, PackedColumn]

    @staticmethod
    def of(batch: Batch) -> PackedBatch:
        packed, lengths = _pack(batch.columns)
        return PackedBatch(len(batch), lengths, packed)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        tensors = [column.values for column in self.columns.values() if column.dtype is not None]
        return sum(array.nbytes for array in (*tensors, *self.lengths))

    def unpack(self) -> Batch:
        lengths = [_unpack_tensor(array, torch.int64) for array in self.lengths]
        batch = Batch(**{name: _unpack(column, lengths) for name, column in self.columns.items()})
        batch.rows = self.num_rows
        return batch


def num_bytes(columns: Mapping[str, Column]) -> int:
    """Of all tensors of a batch as it is."""
    total = 0
    for column in columns.values():
        if isinstance(column, Ragged):
            total += column.flat.nbytes + column.lengths.nbytes
        elif isinstance(column, Tensor):
            total += column.nbytes
    return total


def _pack(columns: Mapping[str, Column]) -> tuple[dict[str, PackedColumn], tuple[np.ndarray, ...]]:
    packed: dict[str, PackedColumn] = {}
    lengths: list[Tensor] = []
    for name, column in columns.items():
        if isinstance(column, Ragged):
            number = next((n for n, known in enumerate(lengths) if torch.equal(known, column.lengths)), len(lengths))
            if number == len(lengths):
                lengths.append(column.lengths)
            packed[name] = PackedColumn(_pack_tensor(column.flat), column.flat.dtype, number)
        elif isinstance(column, Tensor):
            packed[name] = PackedColumn(_pack_tensor(column), column.dtype)
        else:
            packed[name] = PackedColumn(column)
    return packed, tuple(map(_pack_tensor, lengths))


def _pack_tensor(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype in BITS:
        return tensor.contiguous().view(BITS[tensor.dtype]).numpy()
    array = tensor.numpy()
    if tensor.dtype in NUMBERS and array.size:
        low, high = int(array.min()), int(array.max())
        for small in SMALLER:
            limits = np.iinfo(small)
            if limits.min <= low and high <= limits.max:
                return array.astype(small)
    return array


def _unpack(column: PackedColumn, lengths: list[Tensor]) -> Column:
    if column.dtype is None:
        return column.values
    tensor = _unpack_tensor(column.values, column.dtype)
    return tensor if column.lengths is None else Ragged(tensor, lengths[column.lengths])


def _unpack_tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    if dtype in BITS:
        return torch.from_numpy(array.copy()).view(dtype)
    return torch.from_numpy(array.astype(NUMBERS.get(dtype, array.dtype)))  # a copy: Ray's memory is read-only
