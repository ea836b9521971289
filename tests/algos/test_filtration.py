from __future__ import annotations

import pytest
import torch

from burnish.algos.filtration import REWEIGHT_METHODS, resample

SCORES = torch.tensor([0.0, -2.0, 1.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("pow", [0.0, 4.0, 1.0, 9.0, 9.0]),
        ("max_min", [0.0, 1.0, 0.0, 1.0, 1.0]),
        ("max_random", [0.1, 0.1, 0.1, 0.4, 0.4]),
    ],
)
def test_a_method_is_its_formula(method, expected):
    assert REWEIGHT_METHODS[method].load()(SCORES, 2.0).tolist() == pytest.approx(expected)


def test_pow_has_its_exponent():
    assert REWEIGHT_METHODS["pow"].load()(SCORES, 3.0).tolist() == [0, 8, 1, 27, 27]


def test_the_same_generator_draws_the_same():
    drawn = [resample(SCORES, "pow", 2.0, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_as_many_draws_as_rows_with_replacement():
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    drawn = resample(scores, "pow", 2.0, torch.Generator().manual_seed(2))
    assert drawn.sum() == 1000 and drawn.max() > 1 and (drawn == drawn.round()).all()
    assert drawn[scores > 0.8].mean() > 5 * drawn[scores < 0.3].mean()


def test_each_row_is_drawn_as_often_as_its_weight_says():
    generator = torch.Generator().manual_seed(0)
    counts = sum(resample(SCORES, "max_random", 1.0, generator) for _ in range(2000)) / (2000 * len(SCORES))
    expected = torch.tensor([0.1, 0.1, 0.1, 0.4, 0.4]) / 1.1
    torch.testing.assert_close(counts, expected, rtol=0, atol=0.015)


def test_a_batch_of_zeros_is_drawn_from_evenly():
    drawn = resample(torch.zeros(1000), "pow", 2.0, torch.Generator().manual_seed(0))
    assert drawn.sum() == 1000 and (drawn > 0).sum() > 500


def test_no_rows():
    assert resample(torch.empty(0), "max_min", 2.0, torch.Generator()).shape == (0,)
