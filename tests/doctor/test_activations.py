"""Planned activations are what autograd saves, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from burnish.config import load
from burnish.config.adapters import adapter_of
from burnish.doctor import activations as act
from burnish.doctor.activations import EAGER, LayerKernels, MicroBatch
from burnish.models import attention
from burnish.models.compiled import compile_layers
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute

from .meter import Small

MODEL = "actor_rollout_ref.model"
BOTH = LayerKernels(compiled=True, flash=True)


@pytest.fixture
def on_gpu(monkeypatch):
    """The flash kernel's CPU fallback, and torch.compile without code generation: both save what a GPU would."""
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda query, shape, dropout: shape.softcap is None)
    backend = "aot_eager_decomp_partition"  # partitions as inductor does, and runs eagerly
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def planned(small: Small, recomputed: int, group: int = 1, kernels: LayerKernels = EAGER) -> int:
    """Activations, and the cast weights that the backward pass needs; the head casts its own again."""
    activations = act.saved_activations(
        small.shape, small.itemsize, small.micro_batch, recomputed, group=group, kernels=kernels
    )
    copies = (small.shape.layers - recomputed) * act.layer_weight_copies(small.shape, small.itemsize)
    return activations + copies


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma"])
def test_saved_activations_are_exact(family, form):
    small = Small(family, form)
    assert small.saved() == planned(small, 0)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2"])
def test_recomputed_layers_save_their_input(family, form):
    small = Small(family, form)
    enable_recompute(small.model, None, None, "model")
    assert small.saved() == planned(small, small.shape.layers)


def test_block_recomputes_the_first_layers():
    small = Small("qwen2")
    enable_recompute(small.model, "block", 2, "model")
    assert small.saved() == planned(small, 2)


def test_a_recompute_group_saves_one_input():
    small = Small("qwen2")
    enable_recompute(small.model, "uniform", 2, "model")
    assert small.saved() == planned(small, small.shape.layers, group=2)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_softcapped_attention_saves_the_attention_matrix(form):
    small = Small("gemma2", form, (40, 60, 60))
    assert small.saved() == pytest.approx(planned(small, 0), rel=0.03)
    longer = MicroBatch.of([80, 120, 120], 160)
    assert act.saved_by_layer(small.shape, small.itemsize, longer) > 2.5 * act.saved_by_layer(
        small.shape, small.itemsize, small.micro_batch
    )


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_a_forward_pass_needs_one_layer(form):
    small = Small("qwen2", form, (150, 150), vocab_size=16, intermediate_size=160)
    temporaries = act.forward_temporaries(small.shape, small.itemsize, small.micro_batch)
    copies = small.shape.layers * act.layer_weight_copies(small.shape, small.itemsize)
    assert small.peak_of_forward() == pytest.approx(temporaries + copies, rel=0.06)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("qwen2", "mixed"),
        *[pytest.param("gemma3_text", form, marks=pytest.mark.long) for form in ("mixed", "bf16")],
        *[
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("llama", "bf16"), ("qwen3", "mixed"), ("qwen3", "bf16"))
        ],
    ],
)
def test_activations_of_compiled_layers_are_exact(family, form, on_gpu):
    small = Small(family, form, (96, 96, 96), intermediate_size=128, num_hidden_layers=2)
    compile_layers(small.model, "model")
    starts = 4 * (len(small.micro_batch.lengths) + 1)  # cu_seqlens, one tensor for all layers
    assert small.saved() == planned(small, 0, kernels=BOTH) + starts
    if family == "qwen2":
        enable_recompute(small.model, None, None, "model")
        assert small.saved() == planned(small, small.shape.layers, kernels=BOTH)


@pytest.mark.long
def test_compiled_layers_with_softcapped_attention_save_the_attention_matrix(on_gpu):
    """Attention is outside the compiled graph then."""
    small = Small("gemma2", "mixed", (40, 60, 60), num_hidden_layers=2)
    compile_layers(small.model, "model")
    assert small.saved() == pytest.approx(planned(small, 0, kernels=LayerKernels(compiled=True)), rel=0.03)


@pytest.mark.parametrize("form", ["mixed", "bf16"])
def test_flash_attention_saves_its_output_once(form, on_gpu):
    small = Small("qwen2", form)
    starts = 4 * (len(small.micro_batch.lengths) + 1)
    assert small.saved() == planned(small, 0, kernels=LayerKernels(flash=True)) + starts


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_save_no_more_than_planned(dtype, compiled, on_gpu):
    """Adapters save their inputs in their own dtype; frozen norms save less than trained ones."""
    small = Small("qwen2", "bf16", (96, 96, 96), num_hidden_layers=6, intermediate_size=256)
    cfg = load([f"{MODEL}.path=m", f"{MODEL}.lora_rank=1", f"{MODEL}.target_modules=all-linear"], check=False).cfg
    add_adapters(small.model, adapter_of(cfg.actor_rollout_ref.model, MODEL), dtype=dtype, heads=(), seed=0)
    small.itemsize = replace(small.itemsize, adapters=dtype.itemsize)
    if compiled:
        compile_layers(small.model, "model")
    saved, plan = small.saved(), planned(small, 0, kernels=LayerKernels(compiled=compiled, flash=True))
    assert 0.85 * plan < saved < 1.03 * plan
