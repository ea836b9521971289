"""The chunked head against the naive one in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnish import sizing
from burnish.models import logits, logprobs
from burnish.models.device import make_cpu_bf16_safe
from burnish.models.logits import TorchKernel
from burnish.models.logprobs import chunk_logits, token_log_probs

from ..doctor.meter import Meter

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
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * entries)
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
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * 128 * vocabulary)
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
    logits.fused.cache_clear()
    found = []
    for use in (False, True):
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
        weight = torch.randn(11, 8, generator=generator, requires_grad=True)
        new, entropy = logprobs.token_log_probs(
            hidden, weight, torch.arange(5), 0.7, with_entropy=True, softcap=3.0, kernel=TorchKernel(use)
        )
        (new.sum() + 2 * entropy.sum()).backward()
        found.append((new, entropy, hidden.grad, weight.grad))
    logits.fused.cache_clear()
    assert compiled == [("measure_logits", True), ("logit_gradient", True)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_frozen_head_gets_no_gradient():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(11, 8)
    logprobs.token_log_probs(hidden, weight, torch.arange(5))[0].sum().backward()
    assert hidden.grad is not None and weight.grad is None


@pytest.mark.parametrize("entropy_weight", [None, 0.0, 0.3])
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize(("temperature", "softcap"), SETTINGS)
def test_in_float64_it_is_the_naive_head(inputs, monkeypatch, temperature, softcap, trainable, entropy_weight):
    """Values and gradients, over several chunks; also of a frozen head, whose gradient the forward pass knows."""
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * 2 * 10 * VOCABULARY)
    tokens = inputs[2]
    hidden, weight = inputs[0].double().requires_grad_(), inputs[1].double().requires_grad_(trainable)
    pull = torch.linspace(-1, 2, ROWS, dtype=torch.float64)

    def everything(function: Callable) -> list[Tensor]:
        log_probs, entropy = function()
        loss = (log_probs * pull).sum() + (entropy_weight * (entropy * pull.flip(0)).sum() if entropy_weight else 0.0)
        found = [log_probs] if entropy_weight is None else [log_probs, entropy]
        return found + list(torch.autograd.grad(loss, [hidden, weight] if trainable else [hidden]))

    asked = entropy_weight is not None
    ours = everything(lambda: token_log_probs(hidden, weight, tokens, temperature, asked, softcap))
    expected = everything(lambda: naive(hidden, weight, tokens, temperature, softcap))
    for got, want in zip(ours, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_frozen_head_needs_one_product_less(inputs):
    """The backward pass of a head that learns makes the logits again; that of a frozen one only scales."""
    products = {}
    for trainable in (True, False):
        hidden, weight = inputs[0].clone().requires_grad_(), inputs[1].clone().requires_grad_(trainable)
        with Products() as found:
            token_log_probs(hidden, weight, inputs[2])[0].sum().backward()
        products[trainable] = found.count
    assert products == {True: 4, False: 2}
    with torch.no_grad(), Products() as found:
        token_log_probs(inputs[0].clone().requires_grad_(), inputs[1], inputs[2])
    assert found.count == 1


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.count += function._schema.name in ("aten::mm", "aten::addmm")
        return function(*args, **(kwargs or {}))


def test_weights_in_float32_get_a_gradient_that_is_summed_in_float32(inputs, monkeypatch):
    """Masters in float32 under products in bfloat16: the shares of the chunks are added in float32 and stay there."""
    make_cpu_bf16_safe()
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 6 * 10 * VOCABULARY)
    hidden, weight = inputs[0].bfloat16().requires_grad_(), inputs[1].clone().requires_grad_()
    token_log_probs(hidden, weight, inputs[2])[0].sum().backward()
    rounded = inputs[1].bfloat16().double().requires_grad_()
    naive(inputs[0].bfloat16(), rounded, inputs[2], 1.0, None)[0].sum().backward()
    assert weight.grad.dtype == torch.float32
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())
    assert float((weight.grad - rounded.grad).norm() / rounded.grad.norm()) < 1e-2


@pytest.mark.parametrize("with_entropy", [False, True])
def test_the_peak_is_an_eighth_of_the_naive_heads(monkeypatch, with_entropy):
    """Bytes of all tensors that live at once, inputs not counted, at the proportions of 16k tokens on a GPU."""
    rows, hidden_size, vocabulary = 2048, 16, 4096
    hidden, weight = torch.randn(rows, hidden_size), torch.randn(vocabulary, hidden_size)
    tokens = torch.randint(0, vocabulary, (rows,))
    budget = sizing.LOGIT_CHUNK_BYTES["cuda"] * rows * vocabulary // (16384 * 151_936)
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", budget)

    def peak(head: Callable) -> int:
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with Meter([*leaves, tokens]) as meter:
            log_probs, entropy = head(*leaves)
            (log_probs.sum() + (entropy.sum() if with_entropy else 0)).backward()
        return meter.peak

    def plain(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        log_p = (hidden @ weight.t()).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1) if with_entropy else None
        return log_p.gather(-1, tokens[:, None]).squeeze(-1), entropy

    ours = peak(lambda h, w: token_log_probs(h, w, tokens, with_entropy=with_entropy))
    assert ours <= peak(plain) / 8
