"""Activations: what the plan says is kept is what autograd keeps, byte by byte."""

from __future__ import annotations

import pytest
import torch

from burnish.doctor import activations as act
from burnish.doctor.activations import Pass
from burnish.models import logprobs
from burnish.models.logprobs import token_log_probs
from burnish.models.recompute import enable_recompute

from .meter import Meter, Small


def planned(small: Small, recomputed: int, group: int = 1) -> int:
    """Activations, and the converted copies of weights that the backward pass needs."""
    whole = act.kept(small.shape, small.width, small.passed, recomputed, group=group)
    layers = (small.shape.layers - recomputed) * act.layer_weight_copies(small.shape, small.width)
    return whole + layers + (small.width.compute * small.shape.embedding if small.width.mixed else 0)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma"])
def test_what_is_kept_is_counted_exactly(family, form):
    small = Small(family, form)
    assert small.kept() == planned(small, 0)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2"])
def test_recomputed_layers_keep_their_input(family, form):
    small = Small(family, form)
    enable_recompute(small.model, None, None, "model")
    assert small.kept() == planned(small, small.shape.layers)


def test_block_recomputes_the_first_layers():
    small = Small("qwen2")
    enable_recompute(small.model, "block", 2, "model")
    assert small.kept() == planned(small, 2)


def test_a_group_keeps_one_input():
    small = Small("qwen2")
    enable_recompute(small.model, "uniform", 2, "model")
    assert small.kept() == planned(small, small.shape.layers, group=2)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_capped_attention_keeps_every_pair(form):
    small = Small("gemma2", form, (40, 60, 60))
    assert small.kept() == pytest.approx(planned(small, 0), rel=0.03)
    longer = Pass.of([80, 120, 120], 160)
    assert act.kept_by_layer(small.shape, small.width, longer) > 2.5 * act.kept_by_layer(
        small.shape, small.width, small.passed
    )


def test_the_constants_are_those_of_the_head():
    assert act.CHUNK_ENTRIES == logprobs.CHUNK_ENTRIES


@pytest.mark.parametrize("entropy", [False, True])
def test_logits_of_the_head_are_counted(monkeypatch, entropy):
    """A chunk at a time: so many numbers in the backward pass, whatever the number of tokens."""
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", 2000)
    monkeypatch.setattr(act, "CHUNK_ENTRIES", 2000)
    vocab, tokens, hidden = 500, 64, 2
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight, targets = torch.randn(vocab, hidden), torch.randint(0, vocab, (tokens,))
    log_probs, found = token_log_probs(states, weight, targets, with_entropy=entropy)
    loss = log_probs.sum() + (found.sum() if entropy else 0)
    with Meter([states, weight, targets]) as meter:
        loss.backward()
    assert act.chunk_rows(vocab, tokens) == 4
    small_tensors = 4 * tokens * (hidden + 4)  # the states' gradient, and numbers of each token
    logits = act.head_backward_space(vocab, tokens, 4, entropy=entropy)
    assert logits <= meter.peak <= logits + small_tensors


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_reading_needs_one_layer(form):
    small = Small("qwen2", form, (150, 150), vocab_size=16, intermediate_size=160)
    space = act.forward_space(small.shape, small.width, small.passed)
    copies = small.shape.layers * act.layer_weight_copies(small.shape, small.width)
    assert small.peak_of_reading() == pytest.approx(space + copies, rel=0.06)
