"""Batch and Ragged: columns of rows, checked against plain Python lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.batch import ALONG_RESPONSE, Batch, Ragged

ROWS = [[3, 1], [], [4, 1, 5], [9]]
ragged_rows = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=6)
some_rows = st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=6)
fast = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def batch_of(rows):
    """A batch with a column of each kind: ragged, tensor and list."""
    return Batch(
        responses=Ragged.of(rows, torch.int64), length=torch.tensor([len(row) for row in rows]), name=[*map(str, rows)]
    )


def contents(batch):
    return list(zip(batch["responses"].lists(), batch["length"].tolist(), batch["name"], strict=True))


def expected(rows):
    return [(row, len(row), str(row)) for row in rows]


# Ragged


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.int32, torch.float64, None])
def test_ragged_from_lists_and_from_tensors(dtype):
    of_lists = Ragged.of(ROWS, dtype)
    of_tensors = Ragged.of([torch.tensor(row, dtype=dtype or torch.int64) for row in ROWS], dtype)
    assert of_lists.lists() == of_tensors.lists() == ROWS
    assert of_lists.lengths.tolist() == [2, 0, 3, 1]
    assert dtype is None or of_lists.flat.dtype == of_tensors.flat.dtype == dtype


def test_ragged_keeps_the_bits_of_numbers():
    numbers = [2**53 + 1, -(2**62), 0]
    assert Ragged.of([numbers], torch.int64).lists() == [numbers]
    fractions = [0.1, -1e-20, float("inf"), 3.4e38]
    assert torch.equal(Ragged.of([fractions], torch.float32).flat, torch.tensor(fractions))


def test_ragged_without_rows():
    assert len(Ragged.of([], torch.int64)) == 0 and Ragged.of([], torch.int64).flat.dtype == torch.int64


@fast
@given(ragged_rows)
def test_ragged_invariants(rows):
    column = Ragged.of(rows, torch.int64)
    assert len(column) == len(rows) and column.lists() == rows
    assert [column[n].tolist() for n in range(len(rows))] == rows
    assert column.flat.tolist() == [number for row in rows for number in row]
    assert column.offsets.tolist() == [sum(map(len, rows[:n])) for n in range(len(rows) + 1)]
    assert Ragged.like(column.flat * 0, column).lists() == [[0] * len(row) for row in rows]
    assert column.to("cpu").lists() == rows


@fast
@given(some_rows, st.data())
def test_ragged_select_and_padded(rows, data):
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    column = Ragged.of(rows, torch.int64)
    assert column.select(torch.tensor(index, dtype=torch.int64)).lists() == [rows[n] for n in index]
    longest = max(map(len, rows))
    assert column.padded(7).tolist() == [row + [7] * (longest - len(row)) for row in rows]


def test_ragged_sums_of_half_precision():
    column = Ragged.of([[], [0.5, 0.25], [], [1.0], []], torch.bfloat16)
    assert column.sums().tolist() == [0.0, 0.75, 0.0, 1.0, 0.0] and column.sums().dtype == torch.float64


def test_ragged_refuses_lengths_that_do_not_sum_up():
    with pytest.raises(ValueError, match="lengths sum to 3"):
        Ragged(torch.zeros(4), torch.tensor([1, 2]))


# Batch


def test_columns_are_written_once():
    batch = batch_of(ROWS)
    more = batch.add(score=torch.zeros(4))
    assert "score" in more and "score" not in batch, "add returns a new batch"
    with pytest.raises(ValueError, match="column 'score' is already in the batch"):
        more.add(score=torch.ones(4))


def test_columns_have_one_length():
    with pytest.raises(ValueError, match="column 'score' has 3 rows, the batch has 4"):
        batch_of(ROWS).add(score=torch.zeros(3))


def test_access():
    batch = batch_of(ROWS)
    assert len(batch) == 4 and list(batch) == ["responses", "length", "name"] and len(Batch()) == 0
    assert batch.get("missing") is None and batch.get("name") is batch["name"]
    with pytest.raises(KeyError, match="no column 'missing'"):
        batch["missing"]
    assert list(batch.keep("name")) == ["name"]
    assert batch.padded("responses")[2].tolist() == [4, 1, 5]


@fast
@given(some_rows, st.data())
def test_select(rows, data):
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    selected = batch_of(rows).select(index)
    assert len(selected) == len(index)
    assert contents(selected) == expected([rows[n] for n in index])


@fast
@given(some_rows, st.integers(1, 7))
def test_split_and_join(rows, size):
    parts = batch_of(rows).split(size)
    assert [len(part) for part in parts] == [len(rows[start : start + size]) for start in range(0, len(rows), size)]
    joined = Batch.join(parts)
    assert contents(joined) == expected(rows) and list(joined) == list(parts[0])


@fast
@given(some_rows, st.integers(0, 3))
def test_repeat(rows, times):
    assert contents(batch_of(rows).repeat(times)) == expected([row for row in rows for _ in range(times)])


def test_join_needs_the_same_columns():
    with pytest.raises(ValueError, match=r"differ in columns: \['score'\]"):
        Batch.join([batch_of(ROWS), batch_of(ROWS).add(score=torch.zeros(4))])


@pytest.mark.parametrize("name", sorted(ALONG_RESPONSE))
def test_columns_along_the_response_have_its_lengths(name):
    batch = batch_of(ROWS)
    assert batch.add(**{name: Ragged.like(torch.zeros(6), batch["responses"])})[name].lengths.tolist() == [2, 0, 3, 1]
    with pytest.raises(ValueError, match="lengths differ from 'responses'"):
        batch.add(**{name: Ragged(torch.zeros(6), torch.tensor([3, 0, 2, 1]))})
    with pytest.raises(TypeError, match="must be Ragged, not Tensor"):
        batch.add(**{name: torch.zeros(4)})


def test_columns_along_the_response_stay_aligned_when_rows_are_selected():
    batch = batch_of(ROWS)
    batch = batch.add(advantages=Ragged.like(torch.arange(6.0), batch["responses"]))
    selected = batch.select([2, 0])
    assert selected["advantages"].lists() == [[2.0, 3.0, 4.0], [0.0, 1.0]]
    assert torch.equal(selected["advantages"].lengths, selected["responses"].lengths)
