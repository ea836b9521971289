"""The fused head's bytes in the plan are those of the head itself."""

from __future__ import annotations

import pytest
import torch

from burnish.doctor import head
from burnish.doctor.activations import Width
from burnish.doctor.head import ENTRIES, HeadPlan
from burnish.models import chunks
from burnish.models.chunks import Chunks
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.logprobs import token_log_probs

from .meter import Meter, Small


def test_the_constants_are_those_of_the_head():
    assert head.BUDGET == chunks.BUDGET
    assert head.TILE == chunks.TILE


def test_every_kernel_has_its_entry():
    assert ENTRIES.keys() == HEAD_KERNELS.keys()
    for name, entry in ENTRIES.items():
        kernel = HEAD_KERNELS[name](False)
        for dtype in (torch.float32, torch.bfloat16):
            for entropy in (False, True):
                assert entry(dtype.itemsize, entropy) == kernel.entry_bytes(dtype, entropy)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("responses", [1, 100, 5000, 16384, 100_000])
@pytest.mark.parametrize(("vocab", "entry"), [(151_936, 2), (151_936, 10), (32_000, 4), (500, 6)])
def test_rows_are_those_of_the_head(device, responses, vocab, entry):
    found = Chunks.of(responses, vocab, entry, torch.device(device))
    assert HeadPlan(device).rows(vocab, responses, entry) == min(found.rows, responses)


@pytest.mark.parametrize("entropy", [False, True])
def test_logits_of_the_head_are_counted(monkeypatch, entropy):
    """A chunk at a time: so many bytes in the backward pass, whatever the number of tokens."""
    monkeypatch.setitem(chunks.BUDGET, "cpu", 16_000)
    monkeypatch.setitem(head.BUDGET, "cpu", 16_000)
    vocab, tokens, hidden = 500, 64, 2
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight, targets = torch.randn(vocab, hidden, requires_grad=True), torch.randint(0, vocab, (tokens,))
    log_probs, found = token_log_probs(states, weight, targets, with_entropy=entropy)
    loss = log_probs.sum() + (found.sum() if entropy else 0)
    with Meter([states, weight, targets]) as meter:
        loss.backward()
    plan = HeadPlan("cpu")
    assert plan.rows(vocab, tokens, 4 + 4 * entropy) == (4 if entropy else 8)
    small_tensors = 4 * tokens * (hidden + 4)  # the states' gradient, and numbers of each token
    logits = plan.logits(vocab, tokens, 4, entropy=entropy) + 4 * weight.numel()
    assert logits <= meter.peak <= logits + small_tensors


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_the_gradient_of_the_head_is_summed_once(form):
    small = Small("qwen2", form)
    on_gpu, on_cpu = (HeadPlan(device).gradient(small.shape, small.width) for device in ("cuda", "cpu"))
    assert on_gpu == 4 * small.shape.embedding
    assert on_cpu - on_gpu == (0 if small.width.compute == 4 else 2 * small.shape.embedding)
    assert HeadPlan().gradient(small.shape, Width(2, 2)) == on_gpu
