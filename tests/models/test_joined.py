import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from burnish.models.joined import join_products
from burnish.models.load import ModelSource, load_causal_lm
from burnish.rollout.engines.weights import copy_weights


class Layer(nn.Module):
    def __init__(self, bias: bool = True, keys: type = nn.Linear) -> None:
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(6, 8, bias=bias), nn.Linear(6, 4, bias=bias)
        self.k_proj = keys(6, 4, bias=bias)
        self.gate_proj, self.up_proj = nn.Linear(6, 5, bias=False), nn.Linear(6, 5, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        attended = torch.cat([self.q_proj(given), self.k_proj(given), self.v_proj(given)], -1)
        return torch.cat([attended, self.gate_proj(given) * self.up_proj(given)], -1)


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_for_several_and_the_same_numbers(bias):
    layer, given = Layer(bias), torch.randn(3, 6)
    expected = layer(given)
    names = [name for name, _ in layer.named_parameters()]
    products = []

    def linear(*given: torch.Tensor) -> torch.Tensor:
        products.append(given[1].shape)
        return nn.functional.linear(*given)

    assert len(join_products(layer, linear)) == 2
    torch.testing.assert_close(layer(given), expected)
    assert [name for name, _ in layer.named_parameters()] == names
    assert products == [(16, 6), (10, 6)]


def test_a_member_with_another_input_computes_for_itself():
    layer, one, other = Layer(), torch.randn(3, 6), torch.randn(2, 6)
    expected = layer.v_proj(other), layer.k_proj(one)
    join_products(layer)
    layer.q_proj(one)
    torch.testing.assert_close(layer.v_proj(other), expected[0])
    torch.testing.assert_close(layer.k_proj(one), expected[1])


def test_nothing_outlives_the_layer():
    layer = Layer()
    joined = join_products(layer)
    layer(torch.randn(3, 6))
    assert all(group.input is None and not group.parts for group in joined)


def test_new_weights_reach_the_product():
    layer, other, given = Layer(), Layer(), torch.randn(3, 6)
    join_products(layer)
    copy_weights(layer, other.named_parameters())
    torch.testing.assert_close(layer(given), other(given))


def test_layers_of_another_kind_stay_alone():
    class Adapted(nn.Linear):
        pass

    assert [len(group.members) for group in join_products(Layer(keys=Adapted))] == [2]


def test_parted_members_are_as_they_were():
    layer, given = Layer(), torch.randn(3, 6)
    expected = layer(given)
    for group in join_products(layer):
        group.part()
    assert type(layer.q_proj) is nn.Linear and len(join_products(layer)) == 2
    torch.testing.assert_close(layer(given), expected)


def test_all_layers_are_still_one_program(tiny_folder):
    """torch.compile sees the joined product, and no layer needs a program of its own."""
    model = load_causal_lm(ModelSource(tiny_folder), "sdpa", torch.float32).eval()
    given = {"input_ids": torch.arange(3, 9)[None], "use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        join_products(model)
        torch._dynamo.reset()
        counters.clear()
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(model(**given).logits, expected)
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
