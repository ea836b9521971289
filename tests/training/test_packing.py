import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.training.packing import MicroBatchSize, PackedRows, RowSizes, row_lengths
from burnish.training.row_sharding import RowSharding

CPU = torch.device("cpu")


@pytest.fixture
def two_rows():
    return Batch(
        prompt_ids=Ragged.of([[11, 12, 13], [21, 22]], torch.int64),
        responses=Ragged.of([[14, 15], [23, 24, 25]], torch.int64),
    )


def test_rows_become_one_stream_of_segments(two_rows):
    packed = PackedRows.of(two_rows, CPU)
    assert packed.ids.tolist() == [11, 12, 13, 14, 15, 21, 22, 23, 24, 25]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert packed.segments.lengths == [5, 5]
    assert packed.targets.tolist() == [14, 15, 23, 24, 25]


def test_each_response_token_is_predicted_one_place_before_itself(two_rows):
    packed = PackedRows.of(two_rows, CPU)
    assert packed.ids[packed.predicts].tolist() == [13, 14, 22, 23, 24]
    assert packed.ids[packed.predicts + 1].tolist() == packed.targets.tolist()


def test_an_empty_response_keeps_its_prompt_and_predicts_nothing():
    rows = Batch(
        prompt_ids=Ragged.of([[1, 2], [3]], torch.int64),
        responses=Ragged.of([torch.empty(0, dtype=torch.int64), torch.tensor([4])], torch.int64),
    )
    packed = PackedRows.of(rows, CPU)
    assert packed.segments.lengths == [2, 2]
    assert packed.ids[packed.predicts].tolist() == [3]
    assert row_lengths(rows).tolist() == [2, 2]


def test_the_model_gets_one_row_without_a_mask(two_rows):
    inputs = PackedRows.of(two_rows, CPU).inputs()
    assert inputs["input_ids"].shape == (1, 10)
    assert inputs["position_ids"].shape == (1, 10)
    assert inputs["attention_mask"] is None
    assert inputs["use_cache"] is False


def split(lengths, size):
    """The micro-batches of rows of these lengths in one process."""
    rows = torch.tensor(lengths)
    return RowSharding().micro_batches(RowSizes(rows, torch.zeros_like(rows)), size)[0]


def test_a_row_count_cuts_in_order_with_a_short_rest():
    assert split([5] * 10, MicroBatchSize(rows=4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_token_budget_holds_every_row_once():
    lengths = torch.tensor([9, 2, 14, 3, 3, 8, 30])
    cuts = split(lengths.tolist(), MicroBatchSize(tokens=16))
    assert sorted(row for rows in cuts for row in rows) == list(range(7))
    for rows in cuts:
        assert lengths[rows].sum() <= 16 or rows == [6], "only a row longer than the budget may exceed it, alone"


@pytest.mark.parametrize(
    ("rows", "dynamic", "expected"),
    [
        (4, False, MicroBatchSize(rows=4)),
        (4, True, MicroBatchSize(tokens=99)),
        (None, False, MicroBatchSize(tokens=99)),
        (None, True, MicroBatchSize(tokens=99)),
    ],
)
def test_verls_three_keys_are_one_choice(rows, dynamic, expected):
    assert MicroBatchSize.of(rows, dynamic, 99) == expected
