from functools import partial

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from transformers import Qwen2Config, Qwen2ForCausalLM

from burnish.models import attention
from burnish.models.attention import PACKED
from burnish.models.compiled import can_compile, compile_layers, use_cpu_kernels
from burnish.models.cpu import library
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.recompute import enable_recompute
from burnish.models.varlen import Segments

STREAMS = ([4, 5], [3, 8, 2], [9, 9], [12])  # lengths of the rows of one forward each


@pytest.fixture
def traced(monkeypatch):
    """torch.compile without a compiler: what it would compile is run as it is."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def forward_backward(model, lengths: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of a stream, and the gradients of their squares."""
    model.zero_grad()
    tokens = sum(lengths)
    logits = model(
        input_ids=torch.arange(3, 3 + tokens)[None],
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
        segments=Segments.of(lengths, torch.device("cpu")),
        use_cache=False,
    ).logits
    logits.square().mean().backward()
    return logits.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.long
@pytest.mark.parametrize("recomputed", [False, True])
def test_one_program_for_all_layers_and_rows_and_nothing_changes(tiny_folder, traced, monkeypatch, recomputed):
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda *given: True)
    plain, compiled = (load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32).train() for _ in range(2))
    assert compile_layers(compiled, "key") == 2
    if recomputed:
        enable_recompute(compiled, "uniform", 2, "key")
    for lengths in STREAMS:
        one, other = forward_backward(plain, lengths), forward_backward(compiled, lengths)
        torch.testing.assert_close(one[0], other[0])
        for ours, theirs in zip(one[1], other[1], strict=True):
            torch.testing.assert_close(ours, theirs)
    assert traced["stats"]["unique_graphs"] == 1
    assert not traced["graph_break"]


@pytest.mark.long
def test_rows_that_go_one_by_one_break_the_program_and_nothing_else(tiny_folder, traced):
    """Where the kernel does not fit (here: float32 on a CPU), attention stays outside."""
    plain, compiled = (load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32).train() for _ in range(2))
    compile_layers(compiled, "key")
    for lengths in STREAMS:
        torch.testing.assert_close(forward_backward(plain, lengths)[0], forward_backward(compiled, lengths)[0])
    programs = traced["stats"]["unique_graphs"]
    forward_backward(compiled, [2, 2, 7])
    assert traced["stats"]["unique_graphs"] == programs
    assert traced["graph_break"]


def test_dense_families_on_gpus_are_compiled(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    assert can_compile(model, torch.device("cuda")) and not can_compile(model, torch.device("cpu"))
    model.config.model_type = "qwen3_moe"
    assert not can_compile(model, torch.device("cuda"))


SMALL = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "pad_token_id": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_parts_are_in_c(dtype):
    model = Qwen2ForCausalLM(Qwen2Config(**SMALL, num_hidden_layers=2)).to(dtype)
    # two norms, a gate and a rotation in each layer, and the norm behind them
    assert use_cpu_kernels(model) == (9 if dtype == torch.float32 else 0)


def test_without_a_c_compiler_all_is_torchs(monkeypatch):
    library.compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert use_cpu_kernels(Qwen2ForCausalLM(Qwen2Config(**SMALL, num_hidden_layers=1))) == 0
    library.compiled.cache_clear()


@pytest.mark.long
def test_models_do_not_use_up_each_others_programs(tiny_folder, traced, monkeypatch):
    """Of one class, as policy and reference are: each may have as many as the compiler allows for one piece of code."""
    monkeypatch.setattr(attention, "torch_kernel_applies", lambda *given: True)
    models = [load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32) for _ in range(2)]
    models[1].double()
    for model in models:
        compile_layers(model, "key")
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for model in models:
            forward_backward(model, [4, 5])
        assert traced["stats"]["unique_graphs"] == 2
        models[0].double()
        with pytest.raises(FailOnRecompileLimitHit):
            forward_backward(models[0], [4, 5])
