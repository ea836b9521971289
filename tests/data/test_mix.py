from collections import Counter

import pytest

from burnish.data.files import ListRows
from burnish.data.load import load_train
from burnish.data.mix import MixedRows, mixed_order
from burnish.errors import UserError


def test_the_mix_ends_when_every_part_was_used_up():
    order = mixed_order([50, 10], [0.5, 0.5], seed=1)
    assert set(order) == {(0, n) for n in range(50)} | {(1, n) for n in range(10)}
    assert Counter(part for part, _ in order)[0] == 50  # the larger part ends the mix
    assert [n for part, n in order if part == 1][:21] == [*range(10), *range(10), 0]


def test_the_shares_are_the_weights():
    counts = Counter(part for part, _ in mixed_order([4000, 4000], [1, 3], seed=0))
    assert counts[1] / counts.total() == pytest.approx(0.75, abs=0.02)


def test_the_order_is_the_seeds():
    assert mixed_order([30, 30], [0.5, 0.5], 1) == mixed_order([30, 30], [0.5, 0.5], 1)
    assert mixed_order([30, 30], [0.5, 0.5], 1) != mixed_order([30, 30], [0.5, 0.5], 2)
    assert mixed_order([30, 30], [0.5, 0.5], 1) == mixed_order([30, 30], [2, 2], 1)


def rows(name, count):
    return ListRows([{"prompt": f"{name}{number}"} for number in range(count)], name)


def test_rows_know_where_they_come_from():
    mixed = MixedRows([rows("a", 3), rows("b", 40)], [0.5, 0.5], seed=0, key="data.train_files")
    for number, (part, within) in enumerate(mixed.order):
        assert mixed.row(number) == {"prompt": f"{'ab'[part]}{within}"}
        assert mixed.where(number) == f"{'ab'[part]}, row {within}"
    other = MixedRows([rows("a", 3), rows("b", 40)], [0.5, 0.5], seed=1, key="data.train_files")
    assert mixed.fingerprint != other.fingerprint


def test_one_weight_for_each_dataset():
    with pytest.raises(UserError, match=r"data\.train_probs=\[1\.0\]: 1 probabilities for the 2 datasets"):
        MixedRows([rows("a", 3), rows("b", 4)], [1.0], seed=0, key="data.train_files")


def test_parts_have_the_same_columns():
    with pytest.raises(UserError, match="do not have the same columns: only in a: prompt; only in b: question"):
        MixedRows([rows("a", 3), ListRows([{"question": "?"}], "b")], [1, 1], seed=0, key="data.train_files")


def test_a_row_that_comes_twice_has_two_uids(config, tokenizer, write, sums):
    files = [write("a.jsonl", sums(2)), write("b.jsonl", sums(40))]
    data = load_train(config(train_files=files, train_probs=[0.5, 0.5]), tokenizer, run_seed=0)
    assert len(data) == len(data.rows) > 60
    uids = [data.uid(index, 0) for index in range(len(data))]
    assert len(set(uids)) == len(uids)
