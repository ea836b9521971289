"""Which activations are kept, counted; and that no gradient changes."""

import pytest
import torch
from torch import nn

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.recompute import decoder_layers, enable_recompute

INPUTS = {"input_ids": torch.arange(3, 12)[None], "segments": [4, 5], "use_cache": False}
INPUTS["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])


def train_step(folder, recompute=None):
    """(gradients, number of tensors kept for the backward pass, passes through each layer's norm)."""
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32).train()
    if recompute is not None:
        enable_recompute(model, *recompute, "actor_rollout_ref.model")
    passes = [0] * len(model.model.layers)
    for number, layer in enumerate(model.model.layers):
        layer.input_layernorm.register_forward_pre_hook(lambda *_, n=number: passes.__setitem__(n, passes[n] + 1))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(1) or tensor, lambda tensor: tensor):
        loss = model(**INPUTS).logits.square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()], len(kept), passes


def test_no_method_changes_a_gradient_and_each_keeps_less(family_folder):
    plain, all_kept, once = train_step(family_folder)
    assert once == [1, 1]
    counts = {}
    for method, layers, passes in (
        (None, None, [2, 2]),
        ("uniform", None, [2, 2]),
        ("uniform", 2, [2, 2]),
        ("uniform", 9, [2, 2]),
        ("block", 1, [2, 1]),
        ("block", None, [2, 2]),
    ):
        gradients, counts[method, layers], found = train_step(family_folder, (method, layers))
        assert found == passes, (method, layers)
        for one, other in zip(plain, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert counts["uniform", 2] < counts["uniform", None] < counts["block", 1] < all_kept
    assert counts["uniform", 2] == counts["uniform", 9]


def test_inference_runs_every_layer_once(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32).eval()
    before = model(**INPUTS).logits
    enable_recompute(model, "uniform", 2, "key")
    assert torch.equal(model(**INPUTS).logits, before)


def test_layers_of_unknown_structure_are_refused(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(UserError, match="cannot be found"):
        decoder_layers(model, "actor_rollout_ref.model.recompute.method")
