"""Invariant modules in training: the same function as the ordinary model, and its gradients."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, Qwen2Config

from burnish.batch import Batch, Ragged
from burnish.models.attention import PACKED
from burnish.models.invariant import functions
from burnish.models.invariant.functions import packed_attention
from burnish.models.invariant.head import InvariantHead
from burnish.models.invariant.modules import use_invariant_modules, why_not_invariant
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels import sample
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.logits import TORCH
from burnish.models.varlen import AttentionShape, Segments
from burnish.sizing import INVARIANT_FAMILIES
from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    for name, size in {"ROWS": 64, "COLUMNS": 64, "QUERIES": 32, "KEYS": 16}.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(sample, "CHUNK", 64)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    prompts, responses = (
        [torch.randint(3, 20, (length,), generator=generator).tolist() for length in lengths]
        for lengths in ((3, 14, 5), (6, 3, 4))
    )
    return PackedRows.of(
        Batch(prompt_ids=Ragged.of(prompts, torch.int64), responses=Ragged.of(responses, torch.int64)), CPU
    )


def outcome(model, rows, head):
    """Log-probs, entropies, and the gradients of a sum of both."""
    backend = SingleBackend(model, CPU, torch.float32, options=BackendOptions(head=head))
    log_probs, entropy = backend.log_probs(rows, 0.8, True)
    weights = torch.linspace(-1, 1, len(log_probs))
    (log_probs @ weights + 0.3 * entropy.sum()).backward()
    return log_probs.detach(), entropy.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_log_probs_and_gradients_are_those_of_the_model(family_folder, rows):
    source = ModelSource(family_folder)
    plain, invariant = (load_causal_lm(source, PACKED, torch.float32) for _ in range(2))
    if why_not_invariant(plain.config) is not None:
        assert plain.config.model_type not in INVARIANT_FAMILIES
        return
    use_invariant_modules(invariant, torch.float32)
    expected, found = outcome(plain, rows, TORCH), outcome(invariant, rows, InvariantHead(TORCH))
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert (found[2][name] - gradient).norm() < 1e-4 * gradient.norm(), name


def test_why_not():
    assert why_not_invariant(Qwen2Config()) is None
    for config, reason in (
        (Gemma2Config(), "gemma2"),
        (LlamaConfig(hidden_act="gelu"), "gelu"),
        (LlamaConfig(attention_dropout=0.1), "dropout"),
        (LlamaConfig(num_attention_heads=128, num_key_value_heads=1), "share"),
    ):
        assert reason in why_not_invariant(config)


def test_gradients_of_attention_where_torch_has_no_flash_kernel():
    generator = torch.Generator().manual_seed(0)
    segments, shape = Segments([4, 9]), AttentionShape(0.3, window=6)
    leaves = [torch.randn(13, heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2)]
    grad = torch.randn(13, 4, 8, generator=generator)
    output = packed_attention(*leaves, segments, shape)
    expected = torch.autograd.grad(output, leaves, grad)
    found = functions._recomputed_gradients(grad, tuple(leaves), segments, shape)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
