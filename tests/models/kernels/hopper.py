"""Compile every kernel of decoding for an H200, as `python hopper.py`, where TRITON_INTERPRET is not set: no GPU is
needed for that. Prints one line for each."""

from __future__ import annotations

import torch
import triton
from triton.backends.compiler import GPUTarget

from burnish.models.kernels import decode as decoding
from burnish.models.kernels import paged, sample, shared_prefix, tuning

SHAPE = {"BLOCK": 64, "TILE": 64, "CAPPED": True, "PRECISION": "tf32"}
FLOATS, STRIDES = ("scaling", "softcap"), ("cache_block", "cache_head", "table_row")
SHARED_MEMORY = 227 << 10  # bytes of a program


def compiled(kernel, types: dict[str, str], constants: dict, warps: int = 4) -> str:
    """The kernel's PTX; arguments in their order, pointers and strides as multiples of 16."""
    function = getattr(kernel, "jitted", lambda: kernel)()
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    assert {name for name, kind in signature.items() if kind == "constexpr"} == set(constants), signature
    even = [place for place, name in enumerate(function.arg_names) if types.get(name, "")[:1] in ("*", "i")]
    attributes = {(place,): [["tt.divisibility", 16]] for place in even}
    source = triton.compiler.ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": 2}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert binary.metadata.shared <= SHARED_MEMORY, (kernel, constants, binary.metadata.shared)
    return binary.asm["ptx"]


def kinds(names: str, kind: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def decode(
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: str,
    splits: int,
    window: int,
    prefix_splits: int = 0,
    cache: str | None = None,
) -> str:
    types = kinds("query key value", f"*{dtype}") | kinds("keys values", f"*{cache or dtype}")
    types |= kinds("tables", "*i32") | kinds("slots lengths", "*i64")
    types |= kinds("shared", "*i32") | kinds("prefix_parts prefix_weights", "*fp32")
    types |= kinds("parts weights", "*fp32" if splits > 1 else f"*{dtype}") | dict.fromkeys(FLOATS, "fp32")
    types |= kinds("query_head query_row key_head key_row value_head value_row", "i32") | dict.fromkeys(STRIDES, "i32")
    group = heads // kv_heads
    numbers = {"HEADS": heads, "GROUP": group, "GROUP_PAD": 16, "DIM": dim, "DIM_PAD": 1 << (dim - 1).bit_length()}
    numbers |= {**SHAPE, "SPLITS": splits, "PREFIX_SPLITS": prefix_splits, "WINDOW": window}
    return compiled(decoding._decode, types, numbers)


def decode_prefix(heads: int, kv_heads: int, dim: int, dtype: str, window: int) -> str:
    types = kinds("query keys values", f"*{dtype}") | kinds("tables clusters prefix", "*i32") | kinds("lengths", "*i64")
    types |= kinds("parts weights", "*fp32") | dict.fromkeys(FLOATS, "fp32")
    types |= kinds("query_head query_row", "i32") | dict.fromkeys(STRIDES, "i32")
    group = heads // kv_heads
    members = tuning.num_members(group)
    queries = max(16, 1 << (members * group - 1).bit_length())
    size = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[dtype])
    numbers = {"HEADS": heads, "GROUP": group, "DIM": dim, "DIM_PAD": 1 << (dim - 1).bit_length(), "WINDOW": window}
    numbers |= {
        **SHAPE,
        "MEMBERS": members,
        "QUERIES_PAD": queries,
        "SPLITS": 2,
        "TILE": tuning.tile_size(64, dim, size),
    }
    return compiled(shared_prefix._decode_prefix, types, numbers, warps=tuning.prefix_warps(queries, dim))


def prefill(heads: int, kv_heads: int, dim: int, dtype: str, window: int, cache: str | None = None) -> str:
    types = kinds("query output", f"*{dtype}") | kinds("keys values", f"*{cache or dtype}")
    types |= kinds("tables segments tiles", "*i32")
    types |= dict.fromkeys(FLOATS, "fp32") | kinds("query_head query_token", "i32") | dict.fromkeys(STRIDES, "i32")
    numbers = {"HEADS": heads, "GROUP": heads // kv_heads, "QUERIES": paged.QUERIES, "DIM": dim}
    numbers["DIM_PAD"] = 1 << (dim - 1).bit_length()
    return compiled(paged._prefill, types, {**numbers, **SHAPE, "WINDOW": window})


def write(cache: str = "bf16") -> str:
    types = kinds("key value", "*bf16") | kinds("keys values", f"*{cache}") | kinds("slots", "*i64")
    types |= kinds("key_head key_token value_head value_token cache_block cache_head", "i32")
    return compiled(paged._write, types, {"BLOCK": 64, "HEADS": 2, "HEADS_PAD": 2, "DIM": 64, "DIM_PAD": 64})


def combine() -> str:
    numbers = {"HEADS": 14, "SPLITS": 8, "SPLITS_PAD": 8, "DIM": 64, "DIM_PAD": 64}
    return compiled(decoding._combine, kinds("parts weights", "*fp32") | kinds("output", "*bf16"), numbers)


def sampling() -> tuple[str, str]:
    types = kinds("logits", "*bf16") | kinds("temperature peaks sums", "*fp32") | kinds("best", "*i32")
    types |= kinds("softcap", "fp32") | kinds("logit_row vocabulary", "i32")
    numbers = {"CAPPED": True, "CHUNK": sample.CHUNK}
    measured = compiled(sample._measure, types, numbers, warps=8)
    types |= kinds("greedy seed index tokens", "*i64") | kinds("log_probs", "*fp32") | kinds("chunks", "i32")
    return measured, compiled(sample._choose, types, {**numbers, "CHUNKS_PAD": 64}, warps=8)


if __name__ == "__main__":
    for dtype, splits, window in (("bf16", 1, 0), ("bf16", 8, 512), ("fp32", 4, 0)):
        text = decode(14, 2, 64, dtype, splits, window)
        assert "ld.global" in text or "cp.async" in text
        assert dtype == "fp32" or "mma" in text, "the product is not done by the matrix units"
        print("decode", dtype, splits, window)
    for heads, kv_heads, dim, window in ((14, 2, 64, 0), (16, 8, 128, 0), (28, 4, 128, 0), (4, 1, 256, 512)):
        assert "mma" in decode(heads, kv_heads, dim, "bf16", 1, window, prefix_splits=2)
        assert "mma" in decode_prefix(heads, kv_heads, dim, "bf16", window)
        assert decode_prefix(heads, kv_heads, dim, "fp32", window)
        print("shared prefix", heads, kv_heads, dim)
    assert "mma" in decode(28, 4, 128, "bf16", 1, 0)
    assert "e4m3" in decode(14, 2, 64, "bf16", 8, 0, prefix_splits=2, cache="fp8e4nv")
    assert "e4m3" in write("fp8e4nv") and "e4m3" in prefill(14, 2, 64, "bf16", 0, cache="fp8e4nv")
    print("cache of 8 bits")
    assert "mma" in prefill(14, 2, 64, "bf16", 0) and prefill(14, 2, 64, "fp32", 100)
    print("prefill")
    assert "st.global" in write() and combine()
    print("write, combine")
    measured, _ = sampling()
    assert "ld.global.v4.b32" in measured, "logits are read in pieces of less than 16 bytes"
    print("sampling")
    print("compiled")
