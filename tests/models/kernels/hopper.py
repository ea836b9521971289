"""Compile every kernel of decoding for an H200, as `python hopper.py`, where TRITON_INTERPRET is not set: no GPU is
needed for that. Prints one line for each."""

from __future__ import annotations

import itertools

import torch
import triton
from triton.backends.compiler import GPUTarget

from burnish.models.kernels import decode as decoding
from burnish.models.kernels import (
    decode_products,
    fp8_product,
    invariant,
    paged,
    product_tiles,
    sample,
    shared_prefix,
    step,
    tuning,
)

SHAPE = {"BLOCK": 64, "TILE": 64, "CAPPED": True, "PRECISION": "tf32"}
FLOATS, STRIDES = ("scaling", "softcap"), ("cache_block", "cache_head", "table_row")
SHARED_MEMORY, SHARED_MEMORY_OF_ADA = 227 << 10, 99 << 10  # bytes of a program


def compiled(kernel, types: dict[str, str], constants: dict, warps: int = 4, capability: int = 90, **options) -> str:
    """The kernel's PTX; arguments in their order, pointers and strides as multiples of 16."""
    function = getattr(kernel, "jitted", lambda: kernel)()
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    assert {name for name, kind in signature.items() if kind == "constexpr"} == set(constants), signature
    even = [place for place, name in enumerate(function.arg_names) if types.get(name, "")[:1] in ("*", "i")]
    attributes = {(place,): [["tt.divisibility", 16]] for place in even}
    source = triton.compiler.ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": 2, **options}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    limit = SHARED_MEMORY if capability == 90 else SHARED_MEMORY_OF_ADA
    assert binary.metadata.shared <= limit, (kernel, constants, binary.metadata.shared)
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
    types |= {"output": f"*{dtype}", "counters": "*i32"}
    types |= kinds("query_head query_row key_head key_row value_head value_row", "i32") | dict.fromkeys(STRIDES, "i32")
    group = heads // kv_heads
    numbers = {"HEADS": heads, "GROUP": group, "GROUP_PAD": 16, "DIM": dim, "DIM_PAD": 1 << (dim - 1).bit_length()}
    numbers |= {**SHAPE, "SPLITS": splits, "PREFIX_SPLITS": prefix_splits, "WINDOW": window}
    options = {"launch_pdl": True} if splits > 4 else {}
    return compiled(decoding._decode, types, numbers | dict.fromkeys(("FUSED", "OVERLAP"), splits > 4), **options)


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


def invariant_product(dtype: str, parts: int) -> str:
    types = kinds("rows weight weight_1 weight_2 bias bias_1 bias_2 out", f"*{dtype}")
    types |= kinds("count size size_1 size_2 depth row_stride out_stride", "i32")
    depth = invariant.DEPTH_BYTES // {"bf16": 2, "fp32": 4}[dtype]
    numbers = {"PARTS": parts, "BIASED": True, "EVEN": True, "DEPTH": depth, "GROUP": invariant.ROW_GROUP}
    numbers |= {"ROWS": invariant.ROWS, "COLUMNS": invariant.COLUMNS}
    return compiled(invariant._product, types, numbers, invariant.PRODUCT_WARPS, num_stages=invariant.PRODUCT_STAGES)


def invariant_attention(heads: int, kv_heads: int, dim: int, window: int) -> str:
    types = kinds("query keys values output", "*bf16") | kinds("tables segments tiles", "*i32")
    types |= kinds("normalizer", "*fp32") | kinds("scaling", "fp32")
    types |= kinds("query_head query_token key_block value_block key_head value_head key_token value_token", "i32")
    types |= kinds("table_row block_size tokens", "i32")
    numbers = {"HEADS": heads, "GROUP": heads // kv_heads, "QUERIES": invariant.QUERIES, "KEYS": invariant.KEYS}
    numbers |= {"DIM": dim, "DIM_PAD": dim, "WINDOW": window}
    return compiled(invariant._attend, types, numbers, invariant.ATTENTION_WARPS, num_stages=invariant.ATTENTION_STAGES)


def invariant_elementwise() -> None:
    types = kinds("rows", "*fp32") | kinds("weight out", "*bf16") | kinds("row_stride hidden", "i32")
    compiled(invariant._rms_norm, types | kinds("eps", "fp32"), {"BLOCK": 1024})
    compiled(invariant._gated, kinds("joined out", "*bf16") | kinds("size", "i32"), {"BLOCK": invariant.GATE_BLOCK})
    types = kinds("positions", "*i64") | kinds("frequencies cos sin", "*fp32")
    compiled(invariant._rotary_tables, types | kinds("scaling", "fp32") | kinds("half", "i32"), {"BLOCK": 32})
    types = kinds("joined query_norm key_norm out", "*bf16") | kinds("cos sin", "*fp32") | kinds("eps", "fp32")
    numbers = {"HEADS": 24, "HEADS_PAD": 32, "HALF": 64, "HALF_PAD": 64, "NORMED": True}
    compiled(invariant._rotate, types | kinds("row_stride num_queries", "i32"), numbers)
    types = kinds("logits", "*bf16") | kinds("temperature peaks sums log_probs normalizer", "*fp32")
    types |= kinds("tokens", "*i64") | kinds("softcap", "fp32") | kinds("logit_row vocabulary chunks", "i32")
    compiled(sample._log_probs, types, {"CHUNKS_PAD": 64, "CAPPED": False})


def products(hidden: int, inner: int, heads: int, kv_heads: int, dim: int, rows: int, overlap: bool) -> list[str]:
    """Those of a decode layer, with the default tilings, and with their inputs split where that is so."""
    qkv = (heads + 2 * kv_heads) * dim
    tile, floats = product_tiles.tile_rows(rows), kinds("eps offset", "fp32")
    types = kinds("input scaled weight bias query_norm key_norm following", "*bf16") | kinds("counters", "*i32")
    types |= kinds("sums partials cos sin", "*fp32") | kinds("positions", "*i64") | {**floats, "rows": "i32"}
    head = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "POSITIONS": 32769, "BIASED": True, "NORMED": dim > 64}
    cases = [
        (decode_products._heads, qkv, hidden, head, {"output": "*bf16"}, dim),
        (decode_products._gate_up, 2 * inner, hidden, {"INNER": inner, "GELU": dim > 128}, {"output": "*bf16"}, None),
        (decode_products._add, hidden, inner, {"WIDTH": hidden, "ADDS": True}, {"hidden": "*fp32"}, None),
    ]
    texts = []
    for kernel, outputs, inputs, numbers, more, columns in cases:
        choice = product_tiles.default_tiling(outputs, inputs, rows, 2, columns)
        numbers |= {"INPUTS": inputs, "PARTS": 14, "PARTS_PAD": 16, "ROWS": tile, "COLUMNS": choice.columns}
        numbers |= {"DEPTH": choice.depth, "SPLITS": choice.splits, "OVERLAP": overlap, "PRECISION": "tf32"}
        names = getattr(kernel, "jitted", lambda kernel=kernel: kernel)().arg_names
        wanted = {name: kind for name, kind in {**types, **more}.items() if name in names}
        options = {"num_stages": choice.stages, **({"launch_pdl": True} if overlap else {})}
        texts.append(compiled(kernel, wanted, numbers, choice.warps, **options))
    return texts


def product_of_8_bits(rows: int, outputs: int, inputs: int, dtype: str, scales: int, capability: int = 90) -> str:
    types = kinds("input bias output", f"*{dtype}") | {"weight": "*fp8e4nv", "scales": "*fp32", "scale_rows": "*i32"}
    choice = fp8_product.fp8_tiling(rows, outputs, {"bf16": 2, "fp32": 4}[dtype])
    numbers = {"OUTPUTS": outputs, "INPUTS": inputs, "SCALES": scales, "BIASED": True, "DEPTH": fp8_product.DEPTH}
    numbers |= {"ROWS": choice.rows, "COLUMNS": choice.columns, "PRECISION": "ieee" if dtype == "fp32" else "tf32"}
    kernel, options = fp8_product._fp8_product, {"num_stages": choice.stages}
    return compiled(kernel, types | {"rows": "i32"}, numbers, choice.warps, capability, **options)


def rest_of_a_layer() -> list[str]:
    types = kinds("hidden product sums", "*fp32") | kinds("post weight output", "*bf16") | kinds("eps offset", "fp32")
    numbers = {"WIDTH": 2304, "WIDTH_PAD": 4096, "PARTS": 1, "PARTS_PAD": 1, "POST": True, "WHOLE": False}
    texts = [compiled(decode_products._norm_rows, types, numbers)]
    types = kinds("active length slots lengths", "*i64") | kinds("tables", "*i32")
    types |= kinds("rows dummy_slot table_row", "i32")
    texts.append(compiled(step._place, types, {"BLOCKS": 33, "BLOCK": 64, "ROWS": 64}))
    names = "tokens all_tokens end_ids step token length num_tokens active limit"
    types = kinds(names, "*i64") | kinds("log_probs all_log_probs", "*fp32") | kinds("rows", "i32")
    return [*texts, compiled(step._advance, types, {"INTERVAL": 16, "END_IDS": 8, "ROWS": 64})]


if __name__ == "__main__":
    for dtype, splits, window in (("bf16", 1, 0), ("bf16", 8, 512), ("fp32", 4, 0)):
        text = decode(14, 2, 64, dtype, splits, window)
        assert "ld.global" in text or "cp.async" in text
        assert ("griddepcontrol.wait" in text) == ("atom.global.gpu.acq_rel" in text) == (splits > 4)
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
    for parts in (1, 2, 3):
        text = invariant_product("bf16", parts)
        assert "wgmma" in text and "cp.async.cg" in text, "weights are not read in pieces of 16 bytes"
    assert invariant_product("fp32", 1)
    for heads, kv_heads, dim, window in ((14, 2, 64, 0), (32, 8, 64, 0), (16, 8, 128, 0), (32, 8, 128, 512)):
        text = invariant_attention(heads, kv_heads, dim, window)
        assert "wgmma" in text and "mma.sync" not in text and "cp.async.cg" in text
    invariant_elementwise()
    print("invariant")
    for sizes, rows, overlap in (
        ((896, 4864, 14, 2, 64), 8, False),
        ((896, 4864, 14, 2, 64), 64, True),
        ((2560, 9728, 32, 8, 128), 128, False),
        ((1152, 6912, 4, 1, 256), 64, False),
    ):
        for text in products(*sizes, rows, overlap):
            assert "cp.async.cg.shared.global.L2::cache_hint" in text, "weights are not loaded in pieces of 16 bytes"
            assert ("wgmma" if rows >= 64 else "mma.sync") in text and "st.local" not in text
            assert ("griddepcontrol.wait" in text) == ("prefetch.global.L2" in text) == overlap
        print("products", *sizes, rows, overlap)
    for rows, outputs, inputs in ((8, 896, 4864), (64, 4608, 3584), (4096, 9728, 896), (1, 1152, 900)):
        for scales in (1, -(-inputs // fp8_product.DEPTH)):
            text = product_of_8_bits(rows, outputs, inputs, "bf16", scales)
            assert "e4m3" in text and "mma" in text and "st.local" not in text
            assert inputs % 128 or "cp.async" in text, "weights are not loaded ahead"
    for rows, dtype in itertools.product((8, 32, 64, 4096), ("bf16", "fp32")):  # also for Ada, which has less memory
        assert all("e4m3" in product_of_8_bits(rows, 37888, 3584, dtype, 28, capability) for capability in (89, 90))
    print("products of 8 bits")
    assert all("st.global" in text for text in rest_of_a_layer())
    print("norms, step")
    print("compiled")
