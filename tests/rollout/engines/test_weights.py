"""The weight stream into an engine's model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnish.rollout.engines.weights import copy_weights, release_weights


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)).requires_grad_(False)


@pytest.fixture
def weights(model):
    return {name: torch.randn(tensor.shape) for name, tensor in model.named_parameters()}


def test_copies_into_fixed_storage(model, weights):
    places = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    copy_weights(model, iter(weights.items()))
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, weights[name]) and tensor.data_ptr() == places[name]


def test_other_formats_are_converted(model, weights):
    copy_weights(model, ((name, tensor.bfloat16()) for name, tensor in weights.items()))
    assert torch.equal(model[0].weight, weights["0.weight"].bfloat16().float())


def test_missing_tensors_are_named(model, weights):
    del weights["0.bias"]
    with pytest.raises(ValueError, match=r"left out 1 tensors: \['0.bias'\]"):
        copy_weights(model, weights.items())


def test_another_shape_is_refused(model, weights):
    weights["0.weight"] = torch.zeros(3)  # copying it would spread it over both rows
    with pytest.raises(ValueError, match=r"0.weight: the stream has shape \[3\], the model \[2, 3\]"):
        copy_weights(model, weights.items())


def test_a_second_name_of_a_tied_tensor_does_no_harm(model, weights):
    copy_weights(model, [*weights.items(), ("lm_head.weight", torch.zeros(9))])
    assert torch.equal(model[1].weight, weights["1.weight"])


def test_released_weights_come_back_with_the_next_stream(model, weights):
    release_weights(model)
    release_weights(model)
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    copy_weights(model, weights.items())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.named_parameters())
