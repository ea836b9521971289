"""The chunked head against the naive one in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.models import logprobs
from burnish.models.device import make_cpu_bf16_safe
from burnish.models.logprobs import chunk_logits, token_log_probs

ROWS, HIDDEN, VOCABULARY = 37, 16, 101
SETTINGS = [(1.0, None), (0.7, None), (1.0, 2.0), (0.7, 2.0)]


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    return hidden, weight, torch.randint(0, VOCABULARY, (ROWS,), generator=generator)


def naive(hidden, weight, tokens, temperature, softcap):
    logits = hidden.double() @ weight.double().t()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits / temperature, -1)
    return log_p.gather(-1, tokens[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize(("temperature", "softcap"), SETTINGS)
def test_values(inputs, temperature, softcap):
    log_probs, entropy = token_log_probs(*inputs, temperature, with_entropy=True, softcap=softcap)
    expected = naive(*inputs, temperature, softcap)
    assert log_probs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), expected[1], rtol=1e-5, atol=1e-5)


def test_entropy_only_on_request(inputs):
    assert token_log_probs(*inputs)[1] is None


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize(("temperature", "softcap"), SETTINGS)
def test_gradients(inputs, temperature, softcap, entropy_weight):
    hidden, weight, tokens = inputs
    pull = torch.linspace(-1, 2, ROWS)  # a different gradient for every token

    def gradients(function: Callable) -> list[Tensor]:
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        log_probs, entropy = function(*leaves)
        loss = (log_probs * pull).sum() + (entropy_weight * (entropy * pull.flip(0)).sum() if entropy_weight else 0.0)
        loss.backward()
        return [leaf.grad for leaf in leaves]

    ours = gradients(lambda h, w: token_log_probs(h, w, tokens, temperature, with_entropy=True, softcap=softcap))
    expected = gradients(lambda h, w: naive(h, w, tokens, temperature, softcap))
    for got, want in zip(ours, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_entropy_alone_has_a_gradient(inputs):
    hidden, weight, tokens = inputs
    leaf, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    token_log_probs(leaf, weight, tokens, with_entropy=True)[1].sum().backward()
    naive(other, weight, tokens, 1.0, None)[1].sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("entries", [1, 5 * VOCABULARY + 3, ROWS * VOCABULARY])
def test_chunk_size_changes_nothing(inputs, monkeypatch, entries):
    hidden, weight, tokens = inputs

    def everything() -> list[Tensor]:
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        log_probs, entropy = token_log_probs(*leaves, tokens, 0.7, with_entropy=True, softcap=2.0)
        (log_probs.sum() + entropy.sum()).backward()
        return [log_probs.detach(), entropy.detach(), *(leaf.grad for leaf in leaves)]

    whole = everything()
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", entries)
    for got, want in zip(everything(), whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.entries = max([self.entries, *(x.numel() for x in made if isinstance(x, Tensor))])
        return result


def test_never_the_full_logits(monkeypatch):
    rows, vocabulary = 4096, 512
    hidden = torch.randn(rows, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    tokens = torch.randint(0, vocabulary, (rows,))
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", 128 * vocabulary)
    with LargestTensor() as largest:
        log_probs, entropy = token_log_probs(hidden, weight, tokens, with_entropy=True, softcap=30.0)
        (log_probs.sum() + entropy.sum()).backward()
    assert largest.entries <= max(128 * vocabulary, rows * HIDDEN)
    with LargestTensor() as largest:
        chunk_logits(hidden, weight, 1.0, None)
    assert largest.entries == rows * vocabulary  # the counter does see what is large


def test_no_rows():
    hidden = torch.zeros(0, HIDDEN, requires_grad=True)
    log_probs, _ = token_log_probs(hidden, torch.zeros(VOCABULARY, HIDDEN), torch.zeros(0, dtype=torch.int64))
    log_probs.sum().backward()
    assert log_probs.shape == (0,) and hidden.grad.shape == (0, HIDDEN)


def test_bfloat16_weights_get_bfloat16_gradients(inputs):
    make_cpu_bf16_safe()
    hidden, weight = (x.bfloat16().requires_grad_() for x in inputs[:2])
    log_probs, _ = token_log_probs(hidden, weight, inputs[2])
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_a_compiled_head_gives_the_same_numbers(monkeypatch):
    compiled = []

    def trace(function, dynamic):
        compiled.append((function.__name__, dynamic))
        return real(function, dynamic=dynamic, backend="eager")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", trace)
    logprobs.fused.cache_clear()
    found = []
    for use in (False, True):
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
        weight = torch.randn(11, 8, generator=generator, requires_grad=True)
        new, entropy = logprobs.token_log_probs(
            hidden, weight, torch.arange(5), 0.7, with_entropy=True, softcap=3.0, compiled=use
        )
        (new.sum() + 2 * entropy.sum()).backward()
        found.append((new, entropy, hidden.grad, weight.grad))
    logprobs.fused.cache_clear()
    assert compiled == [("measure_logits", True), ("logit_gradient", True)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_frozen_head_gets_no_gradient():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(11, 8)
    logprobs.token_log_probs(hidden, weight, torch.arange(5))[0].sum().backward()
    assert hidden.grad is not None and weight.grad is None
