"""Activations: what the plan says is kept is what autograd keeps, byte by byte."""

from __future__ import annotations

import pytest

from burnish.doctor import activations as act
from burnish.doctor.activations import Pass
from burnish.models.recompute import enable_recompute

from .meter import Small


def planned(small: Small, recomputed: int, group: int = 1) -> int:
    """Activations, and the converted copies of weights that the backward pass needs; the head makes its own again."""
    whole = act.kept(small.shape, small.width, small.passed, recomputed, group=group)
    layers = (small.shape.layers - recomputed) * act.layer_weight_copies(small.shape, small.width)
    return whole + layers


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


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_reading_needs_one_layer(form):
    small = Small("qwen2", form, (150, 150), vocab_size=16, intermediate_size=160)
    space = act.forward_space(small.shape, small.width, small.passed)
    copies = small.shape.layers * act.layer_weight_copies(small.shape, small.width)
    assert small.peak_of_reading() == pytest.approx(space + copies, rel=0.06)
