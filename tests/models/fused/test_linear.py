"""Fused products of attentions and MLPs: the same numbers, names and weights, and one program for all layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from burnish.models.fused.linear import FusedLinear, fuse
from burnish.models.fused.replace import replace_modules
from burnish.models.load import ModelSource, load_causal_lm
from burnish.rollout.engines.weights import copy_weights, release_weights


def layers(bias: bool = True, second: type[nn.Linear] = nn.Linear) -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(6, 8, bias), second(6, 4, bias), nn.Linear(6, 4, bias)]).requires_grad_(False)


def mlp() -> Qwen2MLP:
    return Qwen2MLP(Qwen2Config(hidden_size=6, intermediate_size=10)).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_for_several_and_the_same_numbers(bias):
    group, rows, products = layers(bias), torch.randn(3, 6), []
    expected = [layer(rows) for layer in group]

    def product(*given: Tensor) -> Tensor:
        products.append(given[1].shape)
        return F.linear(*given)

    fused = fuse(list(group), product)
    torch.testing.assert_close(list(fused(rows)), expected)
    torch.testing.assert_close([layer(rows) for layer in group], expected)
    assert products == [(16, 6)]


class Adapted(nn.Linear):
    pass


def test_which_layers_are_fused():
    assert fuse(list(layers()), F.linear) is not None
    assert fuse(list(layers(second=Adapted)), F.linear) is None
    assert fuse([nn.Linear(6, 8), nn.Linear(6, 8, bias=False)], F.linear) is None
    assert fuse([nn.Linear(6, 8), nn.Linear(5, 8)], F.linear) is None
    assert fuse([nn.Linear(6, 8)], F.linear) is None and fuse(list(layers()), None) is None


def test_new_weights_reach_the_product_also_after_a_release():
    model, other, rows = nn.ModuleDict({"mlp": mlp()}), nn.ModuleDict({"mlp": mlp()}), torch.randn(3, 6)
    names = list(model.state_dict())
    replace_modules(model, None, F.linear)
    fused = model["mlp"].gate_up
    assert isinstance(fused, FusedLinear) and list(model.state_dict()) == names
    copy_weights(model, other.named_parameters())
    torch.testing.assert_close(model["mlp"](rows), other["mlp"](rows))
    release_weights(model)
    fused.release()
    assert fused.weight.untyped_storage().nbytes() == 0
    for parameter in other.parameters():
        parameter.data *= 3
    fused.allocate()
    copy_weights(model, other.named_parameters())
    torch.testing.assert_close(model["mlp"](rows), other["mlp"](rows))
    assert model["mlp"].up_proj.weight.data_ptr() == fused.weight[10:].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_layers_are_one_program(tiny_folder, dtype):
    """torch.compile sees one product, also under autocast, and no layer needs a program of its own."""
    model = load_causal_lm(ModelSource(tiny_folder), "sdpa", dtype).eval().requires_grad_(False)
    given = {"inputs_embeds": model.get_input_embeddings()(torch.arange(3, 9)[None]).float(), "use_cache": False}
    # oneDNN's products of 16 bits end the process on some virtual machines.
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.backends.mkldnn.flags(enabled=False):
        expected = model.model(**given).last_hidden_state
        replace_modules(model, None, F.linear)
        torch._dynamo.reset()
        counters.clear()
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, backend="aot_eager", fullgraph=True)
        found = model.model(**given).last_hidden_state
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
