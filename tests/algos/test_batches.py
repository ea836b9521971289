from __future__ import annotations

import itertools
import random
import time

import pytest

from burnish.algos.batches import balanced_partitions, token_budget_batches, workload


def loads(parts, lengths):
    return [sum(lengths[row] for row in part) for part in parts]


@pytest.mark.parametrize("equal_size", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_partitions_cover_every_row_once_and_are_nearly_even(k, equal_size):
    lengths = [random.Random(k).randint(1, 1000) for _ in range(24)]
    parts = balanced_partitions(lengths, k, equal_size)
    assert sorted(itertools.chain(*parts)) == list(range(24))
    assert all(part == sorted(part) for part in parts)
    assert max(loads(parts, lengths)) - min(loads(parts, lengths)) <= 0.1 * sum(lengths) / k
    if equal_size:
        assert {len(part) for part in parts} == {24 // k}


def test_impossible_partitions_are_refused():
    with pytest.raises(ValueError, match="2 rows into 3"):
        balanced_partitions([1, 2], 3)
    with pytest.raises(ValueError, match="equal size"):
        balanced_partitions([1, 2, 3], 2, equal_size=True)


@pytest.mark.parametrize("seed", range(6))
def test_no_batch_is_over_budget_unless_a_single_row_is(seed):
    draw = random.Random(seed)
    lengths = [draw.choice([draw.randint(1, 60), draw.randint(400, 600), 1500]) for _ in range(80)]
    batches = token_budget_batches(lengths, 1000)
    assert sorted(itertools.chain(*batches)) == list(range(80))
    assert all(len(rows) == 1 or load <= 1000 for rows, load in zip(batches, loads(batches, lengths), strict=True))


def test_light_batches_come_first_and_last():
    sizes = loads(token_budget_batches([900, 800, 700, 600, 500, 400], 900), [900, 800, 700, 600, 500, 400])
    peak = sizes.index(max(sizes))
    assert sizes[: peak + 1] == sorted(sizes[: peak + 1]) and sizes[peak:] == sorted(sizes[peak:], reverse=True)


def test_the_number_of_batches():
    assert len(token_budget_batches([10] * 10, 25)) == 5
    assert len(token_budget_batches([10] * 10, 1000)) == 1
    assert len(token_budget_batches([10] * 10, 1000, at_least=4)) == 4
    assert len(token_budget_batches([10] * 3, 1000, at_least=8)) == 3
    assert token_budget_batches([], 10) == []
    assert token_budget_batches([0, 0], 10) == [[0, 1]]
    with pytest.raises(ValueError, match="must be positive"):
        token_budget_batches([1], 0)


def test_a_thousand_rows_are_quick():
    lengths = [random.Random(0).randint(1, 4000) for _ in range(1000)]
    start = time.perf_counter()
    token_budget_batches(lengths, 16_384)
    balanced_partitions([workload(n) for n in lengths], 8, equal_size=True)
    assert time.perf_counter() - start < 10


def test_workload_grows_faster_than_length():
    assert workload(2000) > 2 * workload(1000)
