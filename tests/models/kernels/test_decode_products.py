"""The operations of a decode layer, in torch and in Triton's interpreter, against a layer written out in float64."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from burnish.models.decode_layer import HeadNorms, LayerShape, Rotary, TorchProducts
from burnish.models.kernels import decode_products
from burnish.models.kernels.decode_products import TritonProducts
from burnish.models.kernels.product_tiles import SHARED_BYTES, Tiling, default_tiling, tile_rows

CPU = torch.device("cpu")


class Case(NamedTuple):
    rows: int
    hidden: int
    inner: int
    heads: tuple[int, int]
    dim: int
    biased: bool = False
    head_norms: bool = False
    gemma: bool = False
    splits: int = 1


CASES = {
    "llama": Case(3, 40, 72, (4, 2), 16),
    "qwen2, one row": Case(1, 96, 136, (4, 4), 64, biased=True),
    "qwen2, split": Case(17, 72, 100, (7, 1), 16, biased=True, splits=3),
    "qwen3, odd head size": Case(3, 56, 48, (4, 2), 24, head_norms=True, splits=2),
    "gemma": Case(17, 40, 72, (7, 1), 16, head_norms=True, gemma=True),
    "gemma, split": Case(1, 72, 200, (2, 1), 32, gemma=True, splits=4),
}


class Layer:
    """Random weights and inputs of a layer, and what it computes."""

    def __init__(self, case, dtype=torch.float32):
        g = torch.Generator().manual_seed(0)

        def random(*size):
            return torch.randn(size, generator=g)

        self.case, (heads, kv_heads) = case, case.heads
        activation = "gelu_tanh" if case.gemma else "silu"
        sizes = (case.hidden, case.inner, heads, kv_heads, case.dim)
        self.shape = LayerShape(*sizes, 1e-6, float(case.gemma), activation, case.gemma)
        wide, width = (heads + 2 * kv_heads) * case.dim, heads * case.dim
        products = ((wide, case.hidden), (case.hidden, width), (2 * case.inner, case.hidden), (case.hidden, case.inner))
        self.products = [(random(*size) / size[1] ** 0.5).to(dtype) for size in products]
        self.norms = [random(case.hidden).to(dtype) for _ in range(5)]
        self.bias = random(wide).to(dtype) if case.biased else None
        self.head_norms = HeadNorms(random(case.dim).to(dtype), random(case.dim).to(dtype)) if case.head_norms else None
        self.hidden, self.mixed = 3 * random(case.rows, case.hidden), random(case.rows, width).to(dtype)
        self.rotary = Rotary(*(random(50, case.dim // 2) for _ in range(2)))
        self.positions = torch.randint(50, (case.rows,), generator=g)

    def run(self, products, rows=slice(None)):
        """heads, gated, residual stream, last norm: by these operations, for some rows."""
        first, post, mlp, mlp_post, last = self.norms
        qkv, output, gate_up, down = self.products
        after, mlp_after = (post, mlp_post) if self.case.gemma else (None, None)
        stream = products.begin(self.hidden[rows].clone(), first)
        positions = self.positions[rows].contiguous()
        heads = products.heads(stream, qkv, self.bias, self.head_norms, self.rotary, positions)
        products.add(stream, self.mixed[rows].contiguous(), output, after, mlp)
        gated = products.gate_up(stream, gate_up)
        products.add(stream, gated, down, mlp_after, last)
        return heads, gated, stream.hidden, products.end(stream, last)

    def written_out(self):
        """The same in float64."""
        first, post, mlp, mlp_post, last = (weight.double() + self.shape.offset for weight in self.norms)
        qkv, output, gate_up, down = (weight.double() for weight in self.products)
        x, (heads, kv_heads), dim = self.hidden.double(), self.case.heads, self.case.dim

        def norm(x, weight):
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

        y = norm(x, first) @ qkv.t() + (0 if self.bias is None else self.bias.double())
        y = y.view(len(x), heads + 2 * kv_heads, dim)
        cos, sin = (table[self.positions].double().repeat(1, 2) for table in self.rotary)
        for head in range(heads + kv_heads):
            z = y[:, head]
            if self.head_norms is not None:
                z = norm(z, self.head_norms[head >= heads].double() + self.shape.offset)
            turned = torch.cat([-z[:, dim // 2 :], z[:, : dim // 2]], -1)
            y[:, head] = z * cos + turned * sin
        product = self.mixed.double() @ output.t()
        x = x + (norm(product, post) if self.case.gemma else product)
        gate, up = (norm(x, mlp) @ gate_up.t()).chunk(2, -1)
        gated = (F.gelu(gate, approximate="tanh") if self.case.gemma else F.silu(gate)) * up
        product = gated @ down.t()
        x = x + (norm(product, mlp_post) if self.case.gemma else product)
        return y, gated, x, norm(x, last)


@pytest.fixture
def split(monkeypatch):
    """split(n): products are cut into narrow tiles, and their inputs into n parts."""

    def cut(splits):
        def tiling(capability, product, outputs, inputs, rows, itemsize, columns=None):
            return Tiling(columns or 32, 16, splits)

        monkeypatch.setattr(decode_products, "tiling", tiling)

    return cut


@pytest.mark.parametrize("case", CASES)
def test_operations_of_a_layer(case, split):
    split(CASES[case].splits)
    layer = Layer(CASES[case])
    expected = layer.written_out()
    in_triton = TritonProducts(layer.shape, CPU)
    for products in (TorchProducts(layer.shape), in_triton):
        for found, exact in zip(layer.run(products), expected, strict=True):
            assert found.dtype is torch.float32 and torch.allclose(found.double(), exact, rtol=1e-5, atol=2e-5)
    assert not in_triton.counters.any()


def test_half_precision():
    """The interpreter has no product of bfloat16. The residual stream stays in float32."""
    layer = Layer(CASES["qwen3, odd head size"], torch.float16)
    found = layer.run(TritonProducts(layer.shape, CPU))
    assert [x.dtype for x in found] == [torch.float16, torch.float16, torch.float32, torch.float16]
    for x, exact in zip(found, layer.written_out(), strict=True):
        assert (x.double() - exact).norm() / exact.norm() < 2e-3


def test_bits_of_a_row_do_not_depend_on_the_others(split):
    """Within the same tile of rows. Here rows keep their places: products of numpy, which the interpreter uses, depend
    on those; bench/decode_layer.py moves them on a GPU."""
    split(3)
    layer = Layer(CASES["qwen2, split"]._replace(rows=11, inner=40))
    products = TritonProducts(layer.shape, CPU)
    whole = layer.run(products)
    for found, expected in zip(layer.run(products, slice(4)), whole, strict=True):
        assert torch.equal(found, expected[:4])
    others = torch.arange(11) != 5
    layer.hidden[others], layer.mixed[others] = layer.hidden[others].flip(0), 2 * layer.mixed[others]
    for found, expected in zip(layer.run(products), whole, strict=True):
        assert torch.equal(found[5], expected[5]) and not torch.equal(found[4], expected[4])


# outputs and inputs of the products of Qwen2.5-0.5B, Qwen3-4B and Llama-70B
@pytest.mark.parametrize(("outputs", "inputs"), [(1152, 896), (896, 4864), (9728, 896), (19456, 2560), (57344, 8192)])
@pytest.mark.parametrize("rows", [1, 24, 64, 128])
def test_default_tilings(outputs, inputs, rows):
    choice = default_tiling(outputs, inputs, rows, itemsize=2)
    steps, programs = -(-inputs // choice.depth), -(-outputs // choice.columns) * choice.splits
    assert (choice.splits - 1) * -(-steps // choice.splits) < steps, "a split has nothing to do"
    assert programs >= 76 and (choice.splits == 1 or programs <= 132)
    tile_bytes = 2 * choice.depth * (tile_rows(rows) + choice.columns)
    assert choice.stages == 2 or choice.stages * tile_bytes <= SHARED_BYTES
