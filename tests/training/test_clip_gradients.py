"""Clipping in one process is torch's own, to the last bit. Several ranks: test_tensor_parallel.py, test_sharding.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnish.training.optim import clip_gradients


def parameters(size: float = 1.0, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.zeros(5, 3, dtype=dtype)) for dtype in dtypes for _ in range(3)]
    for parameter in made[:-1]:  # the last has no gradient
        parameter.grad = (size * torch.randn(5, 3, generator=generator)).to(parameter.dtype)
    return made


@pytest.mark.parametrize("max_norm", [0.3, 1e6, float("inf")])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.float64)])
def test_one_process_clips_as_torch_does(max_norm, dtypes):
    ours, theirs = parameters(dtypes=dtypes), parameters(dtypes=dtypes)
    norm = clip_gradients(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert float(norm) == float(expected) > 0.3
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:-1], theirs[:-1], strict=True))


def test_no_gradient_has_no_length():
    assert float(clip_gradients([nn.Parameter(torch.ones(2))], 1.0)) == 0.0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_reported(poison):
    made = parameters()
    made[1].grad[0, 0] = poison
    assert not torch.isfinite(clip_gradients(made, 1.0))
