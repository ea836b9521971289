"""The operations of a decode layer (models/decode_layer.py) in Triton, for batches of few rows.

All rows of the batch are one tile, so that a weight is read once. Whatever surrounds a product happens in its kernel:
the scale of the norm before it, biases, norms of heads and rotary embeddings, the gate, the sum with the residual
stream.

A norm spans the columns of all programs. So whoever writes the residual stream also writes it times the next norm's
weight, in the dtype of the weights, and the sums of squares of its columns. The next product has the former as its
input and scales the result: norm(x) @ W = ((x * weight) @ W) / rms(x).

A product whose inputs are split over several programs is completed by the last of them (split_product.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from burnish.models.decode_layer import HeadNorms, LayerShape, Rotary, Stream
from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.product_tiles import MAX_ROWS, Tiling, tile_rows, tiling
from burnish.models.kernels.split_product import arrive, split_product, sum_of_splits
from burnish.models.kernels.tuning import capability, next_power

MAX_TILES = 4096  # of columns, in products whose inputs are split
row_kernel = partial(kernel, unspecialized=("rows",))  # one program for all numbers of rows within a tile


class TritonProducts:
    """`models.decode_layer.Products`. Its kernels share counters, so they must not run concurrently."""

    def __init__(self, shape: LayerShape, device: torch.device) -> None:
        self.shape, self.capability = shape, capability(device)
        # Also for attention, per row and head.
        size = max(MAX_TILES, MAX_ROWS * shape.kv_heads)
        self.counters = torch.zeros(size, dtype=torch.int32, device=device)

    def begin(self, hidden: Tensor, weight: Tensor) -> Stream:
        # As many parts as later, after products with down_proj: the first layer has no kernels of its own.
        parts = self._parts(self._tiling("add", self.shape.hidden, self.shape.inner, hidden, weight))
        sums = hidden.new_empty(len(hidden), parts)
        stream = Stream(hidden, torch.empty_like(hidden, dtype=weight.dtype), sums)
        self._norm_rows(stream, stream.scaled, weight)
        return stream

    def heads(
        self,
        stream: Stream,
        weight: Tensor,
        bias: Tensor | None,
        norms: HeadNorms | None,
        rotary: Rotary,
        positions: Tensor,
    ) -> Tensor:
        shape, rows = self.shape, len(stream.hidden)
        num_heads = shape.heads + 2 * shape.kv_heads
        output = torch.empty(rows, num_heads, shape.dim, dtype=weight.dtype, device=weight.device)
        # A head's norm needs all of its columns.
        columns = next_power(shape.dim) if norms is not None else min(64, next_power(shape.dim))
        choice = self._tiling("heads", *weight.shape, output, weight, columns)
        tiles = num_heads * -(-shape.dim // choice.columns)
        _heads[(tiles, choice.splits)](
            *(stream.scaled, weight, stream.sums, *self._workspace(tiles, rows, choice), rows),
            *(weight if bias is None else bias, *(norms or (weight, weight)), *rotary, positions, output),
            shape.eps,
            shape.offset,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            DIM=shape.dim,
            POSITIONS=len(rotary.cos),
            BIASED=bias is not None,
            NORMED=norms is not None,
            **self._constants(rows, weight, choice, stream),
        )
        return output

    def gate_up(self, stream: Stream, weight: Tensor) -> Tensor:
        shape, rows = self.shape, len(stream.hidden)
        output = torch.empty(rows, shape.inner, dtype=weight.dtype, device=weight.device)
        choice = self._tiling("gate_up", *weight.shape, output, weight)
        tiles = -(-shape.inner // (choice.columns // 2))
        _gate_up[(tiles, choice.splits)](
            *(stream.scaled, weight, stream.sums, *self._workspace(tiles, rows, choice), rows),
            output,
            shape.eps,
            INNER=shape.inner,
            GELU=shape.activation == "gelu_tanh",
            **self._constants(rows, weight, choice, stream),
        )
        return output

    def add(self, stream: Stream, input: Tensor, weight: Tensor, post: Tensor | None, following: Tensor) -> None:
        shape, rows = self.shape, len(stream.hidden)
        assert input.is_contiguous() and weight.is_contiguous()
        choice = self._tiling("add", *weight.shape, input, weight)
        tiles = -(-shape.hidden // choice.columns)
        product = torch.empty_like(stream.hidden) if post is not None else stream.hidden
        stream.sums = stream.hidden.new_empty(rows, self._parts(choice))
        _add[(tiles, choice.splits)](
            *(input, weight, stream.sums, *self._workspace(tiles, rows, choice), rows),
            *(product, following, stream.scaled),
            shape.offset,
            WIDTH=shape.hidden,
            ADDS=post is None,
            **self._constants(rows, weight, choice, stream),
        )
        if post is not None:
            self._norm_rows(stream, stream.scaled, following, product, post)

    def end(self, stream: Stream, weight: Tensor) -> Tensor:
        output = torch.empty_like(stream.scaled)
        self._norm_rows(stream, output, weight, whole=True)
        return output

    def _tiling(
        self, product: str, outputs: int, inputs: int, rows: Tensor, weight: Tensor, columns: int | None = None
    ) -> Tiling:
        return tiling(self.capability, product, outputs, inputs, len(rows), weight.itemsize, columns)

    def _parts(self, choice: Tiling) -> int:
        """Sums of squares that `add` leaves of a row."""
        return 1 if self.shape.post_norms else -(-self.shape.hidden // choice.columns)

    def _workspace(self, tiles: int, rows: int, choice: Tiling) -> tuple[Tensor, Tensor]:
        """For the results of the splits, and how many of them are there."""
        if choice.splits == 1:
            return self.counters, self.counters  # not used
        assert tiles <= len(self.counters), choice
        size = (tiles, choice.splits, tile_rows(rows), choice.columns)
        return torch.empty(size, dtype=torch.float32, device=self.counters.device), self.counters

    def _constants(self, rows: int, weight: Tensor, choice: Tiling, stream: Stream) -> dict[str, Any]:
        parts = stream.sums.shape[1]
        return {
            "INPUTS": weight.shape[1],
            "PARTS": parts,
            "PARTS_PAD": next_power(parts),
            "ROWS": tile_rows(rows),
            "COLUMNS": choice.columns,
            "DEPTH": choice.depth,
            "SPLITS": choice.splits,
            "OVERLAP": choice.overlap,
            "PRECISION": "ieee" if weight.dtype == torch.float32 else "tf32",
            "num_stages": choice.stages,
            "num_warps": choice.warps,
            **({"launch_pdl": True} if choice.overlap else {}),
        }

    def _norm_rows(
        self,
        stream: Stream,
        output: Tensor,
        weight: Tensor,
        product: Tensor | None = None,
        post: Tensor | None = None,
        whole: bool = False,
    ) -> None:
        rows, width = stream.hidden.shape
        _norm_rows[(rows,)](
            *(stream.hidden, stream.hidden if product is None else product, weight if post is None else post),
            *(weight, output, stream.sums),
            self.shape.eps,
            self.shape.offset,
            WIDTH=width,
            WIDTH_PAD=next_power(width),
            PARTS=stream.sums.shape[1],
            PARTS_PAD=next_power(stream.sums.shape[1]),
            POST=post is not None,
            WHOLE=whole,
        )


@row_kernel
def _heads(
    scaled,
    weight,
    sums,
    partials,
    counters,
    rows,
    bias,
    query_norm,
    key_norm,
    cos,
    sin,
    positions,
    output,
    eps,
    offset,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Pairs of columns that rotate into each other, of one head: all of its pairs where heads have norms."""
    tile, split = tl.program_id(0), tl.program_id(1)
    PAIRS: tl.constexpr = COLUMNS // 2
    HALF: tl.constexpr = DIM // 2
    per_head = tl.cdiv(HALF, PAIRS)
    head, start = tile // per_head, tile % per_head * PAIRS
    number = tl.arange(0, COLUMNS)  # first and second columns of the pairs, alternating
    column = head * DIM + tl.minimum(start + number // 2, HALF - 1) + number % 2 * HALF
    row = tl.minimum(tl.arange(0, ROWS), rows - 1)
    product = split_product(
        *(scaled, weight, row, column, split), INPUTS, ROWS, COLUMNS, DEPTH, SPLITS, OVERLAP, PRECISION
    )
    if SPLITS > 1:
        if arrive(partials, counters, product, rows, tile, split, ROWS, COLUMNS, SPLITS) < SPLITS - 1:
            return
        product = sum_of_splits(partials, counters, row, tile, ROWS, COLUMNS, SPLITS)
    product *= _norm_scale(sums, row, eps, INPUTS, PARTS, PARTS_PAD)[:, None]
    if BIASED:
        product += tl.load(bias + column).to(tl.float32)[None, :]
    first, second = tl.split(tl.reshape(product, [ROWS, PAIRS, 2]))
    place = start + tl.arange(0, PAIRS)
    valid = place < HALF
    turns = head < HEADS + KV_HEADS  # values do not
    if NORMED:
        squares = tl.where(valid[None, :], first * first + second * second, 0.0)
        scale = tl.where(turns, tl.rsqrt(tl.sum(squares, 1) / DIM + eps), 1.0)[:, None]
        first *= scale * _head_weight(query_norm, key_norm, place, valid, offset, head < HEADS, turns)[None, :]
        second *= scale * _head_weight(query_norm, key_norm, place + HALF, valid, offset, head < HEADS, turns)[None, :]
    position = tl.minimum(tl.load(positions + row), POSITIONS - 1)  # that of a sequence that has ended is not used
    angle = position[:, None] * HALF + place[None, :]
    cosine = tl.where(turns, tl.load(cos + angle, mask=valid[None, :], other=1.0), 1.0)
    sine = tl.where(turns, tl.load(sin + angle, mask=valid[None, :], other=0.0), 0.0)
    target = output + (row[:, None] * (HEADS + 2 * KV_HEADS) + head) * DIM + place[None, :]
    stored = (tl.arange(0, ROWS) < rows)[:, None] & valid[None, :]
    tl.store(target, (first * cosine - second * sine).to(output.dtype.element_ty), mask=stored)
    tl.store(target + HALF, (second * cosine + first * sine).to(output.dtype.element_ty), mask=stored)


@row_kernel
def _gate_up(
    scaled,
    weight,
    sums,
    partials,
    counters,
    rows,
    output,
    eps,
    INNER: tl.constexpr,
    GELU: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Matching columns of gate and up."""
    tile, split = tl.program_id(0), tl.program_id(1)
    PAIRS: tl.constexpr = COLUMNS // 2
    number = tl.arange(0, COLUMNS)  # gate and up, alternating
    column = tl.minimum(tile * PAIRS + number // 2, INNER - 1) + number % 2 * INNER
    row = tl.minimum(tl.arange(0, ROWS), rows - 1)
    product = split_product(
        *(scaled, weight, row, column, split), INPUTS, ROWS, COLUMNS, DEPTH, SPLITS, OVERLAP, PRECISION
    )
    if SPLITS > 1:
        if arrive(partials, counters, product, rows, tile, split, ROWS, COLUMNS, SPLITS) < SPLITS - 1:
            return
        product = sum_of_splits(partials, counters, row, tile, ROWS, COLUMNS, SPLITS)
    product *= _norm_scale(sums, row, eps, INPUTS, PARTS, PARTS_PAD)[:, None]
    gate, up = tl.split(tl.reshape(product, [ROWS, PAIRS, 2]))
    if GELU:  # the tanh of its approximation, as a sigmoid
        gate *= tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate *= tl.sigmoid(gate)
    place = tile * PAIRS + tl.arange(0, PAIRS)
    stored = (tl.arange(0, ROWS) < rows)[:, None] & (place < INNER)[None, :]
    tl.store(output + row[:, None] * INNER + place[None, :], (gate * up).to(output.dtype.element_ty), mask=stored)


@row_kernel
def _add(
    input,
    weight,
    sums,
    partials,
    counters,
    rows,
    hidden,
    following,
    scaled,
    offset,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Neighboring columns, added to the residual stream; or only the product, which a norm follows."""
    tile, split = tl.program_id(0), tl.program_id(1)
    place = tile * COLUMNS + tl.arange(0, COLUMNS)
    column = tl.minimum(place, WIDTH - 1)
    row = tl.minimum(tl.arange(0, ROWS), rows - 1)
    product = split_product(
        *(input, weight, row, column, split), INPUTS, ROWS, COLUMNS, DEPTH, SPLITS, OVERLAP, PRECISION
    )
    if SPLITS > 1:
        if arrive(partials, counters, product, rows, tile, split, ROWS, COLUMNS, SPLITS) < SPLITS - 1:
            return
        product = sum_of_splits(partials, counters, row, tile, ROWS, COLUMNS, SPLITS)
    stored = (tl.arange(0, ROWS) < rows)[:, None] & (place < WIDTH)[None, :]
    target = row[:, None] * WIDTH + place[None, :]
    if ADDS:
        product += tl.load(hidden + target, mask=stored, other=0.0)
        factor = tl.load(following + place, mask=place < WIDTH, other=0.0).to(tl.float32) + offset
        tl.store(scaled + target, (product * factor[None, :]).to(scaled.dtype.element_ty), mask=stored)
        total = tl.sum(tl.where(stored, product * product, 0.0), 1)
        tl.store(sums + row * PARTS + tile, total, mask=tl.arange(0, ROWS) < rows)
    tl.store(hidden + target, product, mask=stored)


@kernel
def _norm_rows(
    hidden,
    product,
    post,
    weight,
    output,
    sums,
    eps,
    offset,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    POST: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """One row of the residual stream: add the norm of a product (POST); write the whole norm, or its first half."""
    row, column = tl.program_id(0), tl.arange(0, WIDTH_PAD)
    valid = column < WIDTH
    x = tl.load(hidden + row * WIDTH + column, mask=valid, other=0.0)
    if POST:
        y = tl.load(product + row * WIDTH + column, mask=valid, other=0.0)
        factor = tl.load(post + column, mask=valid, other=0.0).to(tl.float32) + offset
        x += y * tl.rsqrt(tl.sum(y * y, 0) / WIDTH + eps) * factor
        tl.store(hidden + row * WIDTH + column, x, mask=valid)
    total = tl.sum(tl.where(valid, x * x, 0.0), 0)
    scale = tl.rsqrt(total / WIDTH + eps) if WHOLE else 1.0
    factor = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32) + offset
    tl.store(output + row * WIDTH + column, (x * scale * factor).to(output.dtype.element_ty), mask=valid)
    if not WHOLE:
        part = tl.arange(0, PARTS_PAD)
        tl.store(sums + row * PARTS + part, tl.where(part == 0, total, 0.0), mask=part < PARTS)


@kernel
def _norm_scale(sums, row, eps, WIDTH: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr):
    """[rows] 1 / rms of the residual stream."""
    part = tl.arange(0, PARTS_PAD)
    squares = tl.load(sums + row[:, None] * PARTS + part[None, :], mask=(part < PARTS)[None, :], other=0.0)
    return tl.rsqrt(tl.sum(squares, 1) / WIDTH + eps)


@kernel
def _head_weight(query_norm, key_norm, place, valid, offset, is_query, is_normed):
    """The weights of a head's norm; 1 where it has none."""
    query = tl.load(query_norm + place, mask=valid, other=0.0).to(tl.float32)
    key = tl.load(key_norm + place, mask=valid, other=0.0).to(tl.float32)
    return tl.where(is_normed, tl.where(is_query, query, key) + offset, 1.0)
