"""The chunked KL over the vocabulary against the naive one in float64, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from burnish import sizing
from burnish.models.exact_kl import HeadInput, exact_kl

ROWS, HIDDEN, REF_HIDDEN, VOCABULARY = 23, 16, 12, 101
SETTINGS = [(1.0, None, None), (0.7, None, None), (1.0, 2.0, None), (0.7, 2.0, 3.0)]


@pytest.fixture
def inputs():
    """Hidden states and heads of two models; the reference is narrower."""
    generator = torch.Generator().manual_seed(9)
    shapes = ((ROWS, HIDDEN), (VOCABULARY, HIDDEN), (ROWS, REF_HIDDEN), (VOCABULARY, REF_HIDDEN))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def chunked(hidden, weight, ref_hidden, ref_weight, temperature=1.0, softcap=None, ref_softcap=None):
    return exact_kl(HeadInput(hidden, weight, softcap), HeadInput(ref_hidden, ref_weight, ref_softcap), temperature)


def naive(hidden, weight, ref_hidden, ref_weight, temperature=1.0, softcap=None, ref_softcap=None):
    def log_probs(h, w, cap):
        logits = h.double() @ w.double().t()
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return torch.log_softmax(logits / temperature, -1)

    log_p, log_q = log_probs(hidden, weight, softcap), log_probs(ref_hidden, ref_weight, ref_softcap)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize("settings", SETTINGS)
def test_values(inputs, settings):
    found = chunked(*inputs, *settings)
    assert found.dtype == torch.float32 and found.min() > 0
    torch.testing.assert_close(found.double(), naive(*inputs, *settings), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients(inputs, settings):
    pull = torch.linspace(-1, 2, ROWS)  # a different gradient for every token

    def gradients(function):
        leaves = [x.clone().requires_grad_() for x in inputs[:2]]
        (function(*leaves, *inputs[2:], *settings) * pull).sum().backward()
        return [leaf.grad for leaf in leaves]

    for got, want in zip(gradients(chunked), gradients(naive), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_gradients_are_finite_differences(inputs):
    """Of one number, in the direction of a random change."""
    hidden = inputs[0].clone().requires_grad_()
    chunked(hidden, *inputs[1:]).sum().backward()
    change = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    step = 1e-4
    up, down = (naive(inputs[0].double() + sign * step * change.double(), *inputs[1:]).sum() for sign in (1, -1))
    assert float((hidden.grad * change).sum()) == pytest.approx(float(up - down) / (2 * step), rel=1e-4)


def test_the_reference_gets_no_gradient(inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    chunked(*leaves).sum().backward()
    assert leaves[0].grad is not None and leaves[2].grad is None and leaves[3].grad is None


def test_the_kl_to_itself_is_zero(inputs):
    hidden, weight = inputs[:2]
    assert chunked(hidden, weight, hidden, weight).abs().max() < 1e-5


@pytest.mark.parametrize("entries", [1, 5 * VOCABULARY + 3, 4 * ROWS * VOCABULARY])
def test_chunk_size_changes_nothing(inputs, monkeypatch, entries):
    def everything():
        leaves = [x.clone().requires_grad_() for x in inputs[:2]]
        found = chunked(*leaves, *inputs[2:], 0.7, 2.0, 3.0)
        found.sum().backward()
        return [found.detach(), *(leaf.grad for leaf in leaves)]

    whole = everything()
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * entries)
    for got, want in zip(everything(), whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.entries = max([self.entries, *(x.numel() for x in made if isinstance(x, torch.Tensor))])
        return result


def test_never_the_full_logits(monkeypatch):
    rows, vocabulary = 4096, 512
    leaves = [torch.randn(n, HIDDEN, requires_grad=True) for n in (rows, vocabulary)]
    others = [torch.randn(n, HIDDEN) for n in (rows, vocabulary)]
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * 128 * vocabulary)
    with LargestTensor() as largest:
        chunked(*leaves, *others, 1.0, 30.0).sum().backward()
    assert largest.entries <= max(128 * vocabulary, rows * HIDDEN)


def test_no_rows(inputs):
    found = chunked(inputs[0][:0].requires_grad_(), inputs[1], inputs[2][:0], inputs[3])
    found.sum().backward()
    assert found.shape == (0,)


def test_vocabularies_must_agree(inputs):
    with pytest.raises(ValueError, match="different vocabulary sizes: 101 and 50"):
        chunked(inputs[0], inputs[1], inputs[2], inputs[3][:50])
