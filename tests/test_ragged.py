"""Columns of rows of different lengths, made of lists or of tensors."""

from __future__ import annotations

import pytest
import torch

from burnish.batch import Ragged

ROWS = [[3, 1], [], [4, 1, 5], [9]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.int32, torch.float64, None])
def test_lists_and_tensors_make_the_same(dtype):
    of_lists = Ragged.of(ROWS, dtype)
    of_tensors = Ragged.of([torch.tensor(row, dtype=dtype or torch.int64) for row in ROWS], dtype)
    assert of_lists.lists() == of_tensors.lists() == ROWS
    assert of_lists.lengths.tolist() == [2, 0, 3, 1]
    assert dtype is None or of_lists.flat.dtype == of_tensors.flat.dtype == dtype


def test_numbers_keep_their_bits():
    numbers = [2**53 + 1, -(2**62), 0]
    assert Ragged.of([numbers], torch.int64).lists() == [numbers]
    fractions = [0.1, -1e-20, float("inf"), 3.4e38]
    assert torch.equal(Ragged.of([fractions], torch.float32).flat, torch.tensor(fractions))


def test_no_rows():
    assert len(Ragged.of([], torch.int64)) == 0 and Ragged.of([], torch.int64).flat.dtype == torch.int64
