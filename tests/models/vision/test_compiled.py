"""Compiled layers of language models with images: few programs, whatever the images."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from burnish.batch import Batch
from burnish.models import attention
from burnish.models.compiled import can_compile, compile_layers
from burnish.models.vision import tower
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows
from tests.vlm import FAMILIES, rows_of

CPU = torch.device("cpu")


@pytest.fixture
def traced(monkeypatch):
    """torch.compile without a compiler: what it would compile is run as it is."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    for module in (attention, tower):
        monkeypatch.setattr(module, "torch_kernel_applies", lambda *given: True)
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def step(model, batch: Batch) -> dict[str, torch.Tensor]:
    backend = SingleBackend(model, CPU, torch.float32)
    model.zero_grad(set_to_none=True)
    log_probs, _ = backend.log_probs(PackedRows.of(batch, CPU, backend.family), 1.0, False)
    log_probs.square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return grads | {"log_probs": log_probs.detach()}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma3"])
def test_few_programs_for_all_layers_and_images(vlm_of, traced, name):
    vlm = vlm_of(name)
    plain, compiled = (vlm.load().train() for _ in range(2))
    assert compile_layers(compiled, "key") == 2
    prompts, graphs = vlm.prompts(), []
    for batch in (rows_of(prompts), rows_of(prompts[:1]), rows_of(prompts[2:3]), rows_of(prompts[1:])):
        expected = step(plain, batch)
        for ours, tensor in step(compiled, batch).items():
            torch.testing.assert_close(tensor, expected[ours], rtol=1e-4, atol=1e-5 * max(1, float(tensor.abs().max())))
        graphs.append(traced["stats"]["unique_graphs"])
    assert graphs[0] <= 4 and len(set(graphs)) == 1  # few of layers and tower, and no others for other batches
    assert not traced["graph_break"]


def test_whole_images_are_not_compiled(vlm):
    assert can_compile(vlm.load(), torch.device("cuda")) == (vlm.name != "gemma3")
