"""Positions of packed and prefilled tokens of text models."""

from __future__ import annotations

import torch

from burnish.models.model_input import ModelInput
from burnish.models.positions import TEXT


def test_text():
    assert TEXT.packed([3, 1, 2]).tolist() == TEXT.packed(torch.tensor([3, 1, 2])).tolist() == [0, 1, 2, 0, 0, 1]
    assert TEXT.prefill(ModelInput((5, 6, 7, 8)), 1, 4).tolist() == [1, 2, 3]
    assert TEXT.offset(ModelInput((5, 6, 7, 8))) == 0
