from __future__ import annotations

import math

import pytest
import torch

from burnish.algos.whitening import WHITENINGS

X = torch.tensor([1.0, 2.0, torch.nan, 4.0, 9.0], dtype=torch.float64)
MASK = torch.tensor([1, 1, 0, 1, 1])
OWN = [1.0, 2.0, 4.0, 9.0]


def reference(name):
    mean = sum(OWN) / 4
    squares = sum((x - mean) ** 2 for x in OWN)
    scale = {"unbiased": math.sqrt(squares / 3 + 1e-8), "biased": math.sqrt(squares / 4), "mean": 1.0}[name]
    return [(x - mean) / scale for x in OWN]


@pytest.mark.parametrize("name", WHITENINGS.names())
def test_a_whitening_is_its_formula(name):
    found = WHITENINGS[name].load()(X, MASK)
    assert found[MASK.bool()].tolist() == pytest.approx(reference(name), rel=1e-7)
    assert found[2] == 0


@pytest.mark.parametrize("name", WHITENINGS.names())
def test_equal_numbers_and_single_ones_give_zero(name):
    whiten = WHITENINGS[name].load()
    assert whiten(torch.full((5,), 0.5), torch.ones(5)).abs().max() < 1e-3
    assert whiten(torch.tensor([3.0]), torch.ones(1)).abs().max() < 1e-3
    assert whiten(torch.empty(0), torch.empty(0)).shape == (0,)


def test_biased_holds_the_variance_above_its_floor():
    tiny = torch.tensor([0.0, 1e-6], dtype=torch.float64)
    assert WHITENINGS["biased"].load()(tiny, torch.ones(2)).tolist() == pytest.approx([-5e-3, 5e-3], rel=1e-3)
