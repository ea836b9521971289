"""The head in Triton, through its interpreter, against the naive head; and that every kernel compiles for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnish import sizing
from burnish.models.exact_kl import HeadInput, exact_kl
from burnish.models.kernels import head
from burnish.models.kernels.head import TritonKernel
from burnish.models.logprobs import token_log_probs

ROWS, HIDDEN, VOCABULARY = 9, 8, 150
SETTINGS = [(1.0, None), (0.7, 2.0)]


@pytest.fixture(autouse=True)
def several_blocks_and_chunks(monkeypatch):
    """A row is three blocks, the last of them not full; the rows are three chunks."""
    monkeypatch.setattr(head, "BLOCK", 64)
    monkeypatch.setitem(sizing.LOGIT_CHUNK_BYTES, "cpu", 8 * 3 * VOCABULARY)


def tensors(dtype: torch.dtype, *shapes: tuple[int, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def log_softmax(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    logits = hidden @ weight.t()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return torch.log_softmax(logits / temperature, -1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize("entropy_weight", [None, 0.3])
@pytest.mark.parametrize(("temperature", "softcap"), SETTINGS)
def test_log_probs_entropy_and_gradients(dtype, tolerance, temperature, softcap, entropy_weight):
    hidden, weight = tensors(dtype, (ROWS, HIDDEN), (VOCABULARY, HIDDEN))
    tokens = torch.arange(0, VOCABULARY, VOCABULARY // ROWS)[:ROWS]
    pull = torch.linspace(-1, 2, ROWS, dtype=dtype)

    def everything(head_of: Callable) -> list[Tensor]:
        log_probs, entropy = head_of()
        loss = (log_probs * pull).sum() + (entropy_weight * (entropy * pull.flip(0)).sum() if entropy_weight else 0.0)
        return [log_probs, *([entropy] if entropy_weight else []), *torch.autograd.grad(loss, [hidden, weight])]

    def naive() -> tuple[Tensor, Tensor]:
        log_p = log_softmax(hidden, weight, temperature, softcap)
        return log_p.gather(-1, tokens[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)

    ours = everything(
        lambda: token_log_probs(
            hidden, weight, tokens, temperature, entropy_weight is not None, softcap, kernel=TritonKernel()
        )
    )
    for got, want in zip(ours, everything(naive), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize(("temperature", "softcap"), SETTINGS)
def test_the_exact_kl(dtype, tolerance, temperature, softcap):
    hidden, weight, ref_hidden, ref_weight = tensors(
        dtype, (ROWS, HIDDEN), (VOCABULARY, HIDDEN), (ROWS, 4), (VOCABULARY, 4)
    )
    pull = torch.linspace(-1, 2, ROWS, dtype=dtype)
    policy, reference = HeadInput(hidden, weight, softcap), HeadInput(ref_hidden.detach(), ref_weight.detach(), 3.0)
    ours = exact_kl(policy, reference, temperature, kernel=TritonKernel())
    log_p, log_q = (log_softmax(*one[:2], temperature, one.softcap) for one in (policy, reference))
    naive = (log_p.exp() * (log_p - log_q)).sum(-1)
    torch.testing.assert_close(ours, naive, rtol=tolerance, atol=tolerance)
    gradients = [torch.autograd.grad((found * pull).sum(), [hidden, weight]) for found in (ours, naive)]
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_frozen_head():
    hidden, weight = tensors(torch.float32, (ROWS, HIDDEN), (VOCABULARY, HIDDEN))
    tokens = torch.arange(ROWS)
    found = [
        torch.autograd.grad(one.sum(), hidden)[0]
        for one in (
            token_log_probs(hidden, weight.detach(), tokens, kernel=TritonKernel())[0],
            log_softmax(hidden, weight, 1.0, None).gather(-1, tokens[:, None]),
        )
    ]
    torch.testing.assert_close(*found)


COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from burnish.models.kernels import head

def compiled(kernel, pointers, numbers, flags):
    signature = {name: "*i64" if name == "tokens" else "*bf16" if "product" in name else "*fp32" for name in pointers}
    attributes = {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))}
    constants = {**dict.fromkeys(flags, True), "VOCABULARY": 151_936, "BLOCK": head.BLOCK}
    signature |= dict.fromkeys(numbers, "fp32") | dict.fromkeys(constants, "constexpr")
    function = getattr(kernel, "jitted", lambda: kernel)()
    source = triton.compiler.ASTSource(function, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": head.WARPS}).asm["ptx"]

one = ("scale", "cap")
measured = compiled(head.measure_rows, ("product", "tokens", "normalizer", "log_prob", "entropy"), one,
                    ("CAPPED", "ENTROPY"))
gradient = compiled(head.differentiate_blocks,
                    ("product", "tokens", "normalizer", "entropy", "grad", "grad_entropy"), one, ("CAPPED", "ENTROPY"))
gap = compiled(head.measure_gap_rows, ("product", "ref_product", "normalizer", "ref_normalizer", "kl"),
               (*one, "ref_cap"), ("CAPPED", "REF_CAPPED"))
slope = compiled(head.differentiate_gap_blocks,
                 ("product", "ref_product", "normalizer", "ref_normalizer", "kl", "grad"), (*one, "ref_cap"),
                 ("CAPPED", "REF_CAPPED"))
for ptx in (measured, gradient, gap, slope):
    assert "ld.global.v4.b32" in ptx, "a chunk is read in pieces of less than 16 bytes"
for ptx in (gradient, slope):
    assert "st.global.v4.b32" in ptx, "a chunk is written in pieces of less than 16 bytes"
print("compiled")
"""


@pytest.mark.long
def test_every_kernel_compiles_for_hopper(tmp_path):
    """No GPU is needed for that; logits are read and written 16 bytes at a time."""
    script = tmp_path / "compile.py"
    script.write_text(COMPILE)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
