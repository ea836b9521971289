"""A response's bits do not depend on what else is in the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.models.fused.replace import replace_modules
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.invariant import TILE, padding, tiled_product
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.seeding import derive_seed

PROMPT_LENGTHS = [*range(1, 61), 250, 256, 257, 290]
NUM_RESPONSES = 500


@pytest.fixture
def requests(prompt):
    """500 requests over 64 prompts, shuffled; with different lengths, temperatures and limits."""
    prompts = [prompt(length) for length in PROMPT_LENGTHS]
    order = torch.randperm(NUM_RESPONSES, generator=torch.Generator().manual_seed(0)).tolist()
    settings = [{}, {}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"do_sample": False}]
    return [
        Request(
            ModelInput(prompts[i % 64]),
            Sampling(1 + i % 24, **settings[i % len(settings)]),
            derive_seed("invariant", i),
        )
        for i in order
    ]


def respond(engine, requests):
    return [future.result(120) for future in engine.generate(requests)]


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(params=["native", pytest.param("torch", marks=pytest.mark.long)])
def both_ways(request, monkeypatch):
    """With the C kernels, and without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(ModelRunner, "_compile", lambda runner, group: None)
    return request.param


def test_alone_and_in_batches_are_equal(tiny_folder, make_engine, requests, both_ways):
    if both_ways == "torch":  # slow
        requests = requests[:150]
    alone = respond(make_engine(tiny_folder, max_num_seqs=1), requests)
    assert {completion.finish_reason for completion in alone} == {"stop", "length"}
    assert max(len(completion.ids) for completion in alone) == 24
    assert len({tuple(completion.ids) for completion in alone}) > 0.6 * len(requests)
    for size in (7, 64, 256):
        assert respond(make_engine(tiny_folder, max_num_seqs=size), requests) == alone, size


def test_order_of_arrival_changes_nothing(tiny_folder, make_engine, requests):
    engine = make_engine(tiny_folder, max_num_seqs=64)
    assert engine.capabilities.invariant and engine.capabilities.addressed == "token"
    forward = respond(engine, requests)
    assert respond(engine, requests[::-1])[::-1] == forward


def test_two_threads(tiny_folder, make_engine, requests, two_threads, both_ways):
    some = [request for request in requests if request.sampling.max_tokens <= 4][:32]
    alone = respond(make_engine(tiny_folder, max_num_seqs=1), some)
    assert respond(make_engine(tiny_folder, max_num_seqs=len(some)), some) == alone


def test_every_family(family_folder, make_engine, requests, both_ways):
    """Windows and soft caps use other attention code."""
    some = requests[:40]
    alone = respond(make_engine(family_folder, max_num_seqs=1), some)
    assert respond(make_engine(family_folder, max_num_seqs=40), some) == alone


def test_padding():
    assert [padding(rows, TILE) for rows in (1, TILE - 1, TILE, TILE + 1)] == [TILE - 1, 1, 0, TILE - 1]
    assert padding(5, 1) == 0


class ProductRows(TorchDispatchMode):
    """Records the number of rows of each matrix product."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        matrices = {"aten::addmm": 1, "aten::mm": 0}
        if function._schema.name in matrices:
            self.rows.append(len(args[matrices[function._schema.name]]))
        return function(*args, **(kwargs or {}))


def test_every_product_has_the_same_number_of_rows():
    """Libraries choose their code by shape; where this one's choice shows differs from machine to machine."""
    layers = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 7, bias=False)).requires_grad_(False)
    with ProductRows() as plain:
        layers(torch.zeros(1, 3 * TILE, 24))
    replace_modules(layers, None, tiled_product)
    with ProductRows() as tiled:
        layers(torch.zeros(1, 3 * TILE, 24))
    assert plain.rows == [3 * TILE] * 2 and tiled.rows == [TILE] * 6


def test_the_engine_uses_it_where_it_says_so(tiny_folder, make_engine, monkeypatch):
    monkeypatch.setattr(ModelRunner, "_compile", lambda runner, group: None)
    for invariant in (True, False):
        engine = make_engine(tiny_folder, invariant=invariant)
        assert engine.capabilities.invariant is invariant
        layers = [module for module in engine.runner.model.modules() if isinstance(module, nn.Linear)]
        with ProductRows() as product:
            for layer in layers:
                layer(torch.zeros(2 * TILE, layer.in_features))
        assert set(product.rows) == {TILE if invariant else 2 * TILE}


def test_tiled_layers_compute_the_same():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 7, bias=False))
    x = torch.randn(1, 3 * TILE, 24)
    expected = plain(x)
    replace_modules(plain, None, tiled_product)
    with torch.no_grad():
        tiled = plain(x)
        assert torch.equal(plain(x[:, TILE : 2 * TILE]), tiled[:, TILE : 2 * TILE])
        torch.testing.assert_close(tiled, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="not a multiple"):
            plain(x[:, :5])
