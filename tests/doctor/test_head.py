"""The planned bytes of the fused head are those of the head itself."""

from __future__ import annotations

import pytest
import torch

from burnish.doctor.activations import Itemsize
from burnish.doctor.head import HeadPlan
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.logprobs import token_log_probs
from burnish.sizing import ENTRY_BYTES, LOGIT_CHUNK_BYTES, chunk_rows

from .meter import Meter, Small


def test_every_kernel_has_its_entry_bytes():
    assert ENTRY_BYTES.keys() == HEAD_KERNELS.keys()
    for name, entry_bytes in ENTRY_BYTES.items():
        kernel = HEAD_KERNELS[name](False)
        for dtype in (torch.float32, torch.bfloat16):
            for entropy in (False, True):
                assert entry_bytes(dtype.itemsize, entropy) == kernel.entry_bytes(dtype, entropy)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chunks_have_equal_sizes_within_the_budget(device):
    tile = 1 if device == "cpu" else 128
    for num_rows in (1, 100, 5000, 16384, 100_000):
        for vocab, entry in ((151_936, 2), (151_936, 10), (32_000, 4), (500, 6)):
            rows = chunk_rows(num_rows, vocab, entry, device)
            assert rows * vocab * entry <= LOGIT_CHUNK_BYTES[device] or rows == 1
            assert rows % tile == 0 or rows == 1
            num_chunks = -(-num_rows // rows)
            assert rows - -(-num_rows // num_chunks) < tile


@pytest.mark.parametrize("entropy", [False, True])
def test_logits_of_the_head_are_counted(monkeypatch, entropy):
    """The backward pass holds one chunk at a time, whatever the number of tokens."""
    monkeypatch.setitem(LOGIT_CHUNK_BYTES, "cpu", 16_000)
    vocab, tokens, hidden = 500, 64, 2
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight, targets = torch.randn(vocab, hidden, requires_grad=True), torch.randint(0, vocab, (tokens,))
    log_probs, entropies = token_log_probs(states, weight, targets, with_entropy=entropy)
    loss = log_probs.sum() + (entropies.sum() if entropy else 0)
    with Meter([states, weight, targets]) as meter:
        loss.backward()
    plan = HeadPlan("cpu")
    assert chunk_rows(tokens, vocab, 4 + 4 * entropy, "cpu") == (4 if entropy else 8)
    small_tensors = 4 * tokens * (hidden + 4)  # the hidden states' gradient, and per-token scalars
    logits = plan.logits(vocab, tokens, 4, entropy=entropy) + 4 * weight.numel()
    assert logits <= meter.peak <= logits + small_tensors


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_the_gradient_of_the_head_is_summed_once(form):
    small = Small("qwen2", form)
    on_gpu, on_cpu = (HeadPlan(device).gradient(small.shape, small.itemsize) for device in ("cuda", "cpu"))
    assert on_gpu == 4 * small.shape.embedding
    assert on_cpu - on_gpu == (0 if small.itemsize.compute == 4 else 2 * small.shape.embedding)
    assert HeadPlan().gradient(small.shape, Itemsize(2, 2)) == on_gpu
