"""Activations: what the plan says is kept is what autograd keeps, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from burnish.config import load
from burnish.config.adapters import adapter_of
from burnish.doctor import activations as act
from burnish.doctor.activations import PLAIN, Making, Pass
from burnish.doctor.roles import COMPILED, flash_fits
from burnish.models import attention, varlen
from burnish.models.compiled import COMPILED_FAMILIES, compile_layers
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute
from burnish.models.varlen import AttentionShape

from .meter import KEPT, Small

MODEL = "actor_rollout_ref.model"
BOTH = Making(compiled=True, flash=True)


@pytest.fixture
def on_gpu(monkeypatch):
    """The GPU's kernel, done by plain products, and torch.compile without a compiler: what it would keep is kept."""
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda query, shape, dropout: shape.softcap is None)
    backend = "aot_eager_decomp_partition"  # divides as inductor does, and runs what it has as it is
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def planned(small: Small, recomputed: int, group: int = 1, making: Making = PLAIN) -> int:
    """Activations, and the converted copies of weights that the backward pass needs; the head makes its own again."""
    whole = act.kept(small.shape, small.width, small.passed, recomputed, group=group, making=making)
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


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *[("qwen2", "mixed"), ("llama", "bf16"), ("qwen3", "mixed")],
        *[pytest.param("gemma3_text", form, marks=pytest.mark.long) for form in ("mixed", "bf16")],
    ],
)
def test_what_a_compiled_layer_keeps_is_counted_exactly(family, form, on_gpu):
    small = Small(family, form, (96, 96, 96), intermediate_size=128)
    compile_layers(small.model, "model")
    starts = 4 * (len(small.passed.lengths) + 1)  # where rows start, one tensor for all layers
    assert small.kept() == planned(small, 0, making=BOTH) + starts


def test_compiled_layers_with_capped_attention_keep_every_pair(on_gpu):
    """The product is outside of the program then."""
    small = Small("gemma2", "mixed", (40, 60, 60))
    compile_layers(small.model, "model")
    assert small.kept() == pytest.approx(planned(small, 0, making=Making(compiled=True)), rel=0.03)


def test_compiled_layers_that_are_recomputed_keep_their_input(on_gpu):
    small = Small("qwen2", "mixed")
    compile_layers(small.model, "model")
    enable_recompute(small.model, None, None, "model")
    assert small.kept() == planned(small, small.shape.layers, making=BOTH)


@pytest.mark.parametrize("form", ["mixed", "bf16"])
def test_one_kernel_for_all_rows_keeps_no_second_output(form, on_gpu):
    small = Small("qwen2", form)
    starts = 4 * (len(small.passed.lengths) + 1)
    assert small.kept() == planned(small, 0, making=Making(flash=True)) + starts


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_keep_no_more_than_planned(dtype, compiled, on_gpu):
    """What adapters read is kept in their format; of frozen norms less is kept than of taught ones."""
    small = Small("qwen2", "bf16", (96, 96, 96), num_hidden_layers=6, intermediate_size=256)
    cfg = load([f"{MODEL}.path=m", f"{MODEL}.lora_rank=1", f"{MODEL}.target_modules=all-linear"], check=False).cfg
    add_adapters(small.model, adapter_of(cfg.actor_rollout_ref.model, MODEL), dtype=dtype, heads=(), seed=0)
    small.width = replace(small.width, adapters=dtype.itemsize)
    if compiled:
        compile_layers(small.model, "model")
    kept, plan = small.kept(), planned(small, 0, making=Making(compiled=compiled, flash=True))
    assert 0.85 * plan < kept < 1.03 * plan


def test_what_planning_knows_by_heart_is_what_runs():
    assert COMPILED == COMPILED_FAMILIES
    for changes in ({}, {"head_dim": 12}, {"head_dim": 264}):
        for form in ("bf16", "fp32"):
            small = Small("qwen2", form, **changes)
            query = torch.empty(1, 4, 3, small.shape.head_dim, dtype=KEPT[form])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(varlen, "TORCH_KERNEL_ON", frozenset({"cpu"}))
                assert flash_fits(small.shape, small.width) == varlen.torch_kernel_applies(
                    query, AttentionShape(1.0), 0.0
                )
