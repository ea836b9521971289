"""A matrix product with weights of 8 bits and float32 scales in Triton, for any number of rows (models/fused/fp8.py).

Tiles of the weights are converted, without loss, to the dtype of the input; the product of each tile is scaled in
float32 as it is added. One program computes a tile of the output over all inputs, so that sums have one order.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.product_tiles import MULTIPROCESSORS, ROW_TILES, SHARED_BYTES
from burnish.sizing import FLOAT32_BYTES as FLOAT
from burnish.sizing import FP8_BLOCK as DEPTH  # inputs per iteration, which share their scales

COLUMN_TILES = (128, 64, 32, 16)  # rows of the weight (outputs) of a program
MAX_STAGES = 5


class Fp8Tiling(NamedTuple):
    rows: int
    columns: int
    stages: int  # tiles on their way
    warps: int


def fp8_tiling(rows: int, outputs: int, itemsize: int) -> Fp8Tiling:
    """The widest tiles whose programs still fill a GPU; `itemsize` is that of the input.

    Matrix units take 16-bit weights from registers; those of 32 bits go through shared memory, which limits tiles.
    """
    wide = itemsize == FLOAT
    heights, widths = (ROW_TILES[:2], COLUMN_TILES[1:]) if wide else (ROW_TILES, COLUMN_TILES)
    height = next((size for size in heights if size >= rows), heights[-1])
    row_tiles = -(-rows // height)
    columns = next((size for size in widths if row_tiles * -(-outputs // size) >= MULTIPROCESSORS), widths[-1])
    left = SHARED_BYTES - (columns * DEPTH * itemsize if wide else 0)
    stages = left // ((height * itemsize + columns) * DEPTH)
    return Fp8Tiling(height, columns, max(2, min(MAX_STAGES, stages)), 8 if height * columns >= 128 * 128 else 4)


def fp8_product(input: Tensor, weight: Tensor, scales: Tensor, scale_rows: Tensor, bias: Tensor | None) -> Tensor:
    """[rows, outputs] in the dtype of the input."""
    input = input.contiguous()
    (rows, inputs), outputs = input.shape, len(weight)
    output = torch.empty(rows, outputs, dtype=input.dtype, device=input.device)
    choice = fp8_tiling(rows, outputs, input.itemsize)
    # Programs of the same weights run side by side, and read them once.
    _fp8_product[(-(-rows // choice.rows), -(-outputs // choice.columns))](
        *(input, weight, scales, scale_rows, weight if bias is None else bias, output, rows),
        OUTPUTS=outputs,
        INPUTS=inputs,
        SCALES=scales.shape[1],
        BIASED=bias is not None,
        ROWS=choice.rows,
        COLUMNS=choice.columns,
        DEPTH=DEPTH,
        PRECISION="ieee" if input.dtype == torch.float32 else "tf32",
        num_stages=choice.stages,
        num_warps=choice.warps,
    )
    return output


@partial(kernel, unspecialized=("rows",))
def _fp8_product(
    input,
    weight,
    scales,
    scale_rows,
    bias,
    output,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SCALES: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows and columns beyond the last are those of the last again, and not stored."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    read_row, read_column = tl.minimum(row, rows - 1).to(tl.int64), tl.minimum(column, OUTPUTS - 1)
    scale = scales + tl.load(scale_rows + read_column) * SCALES
    x = input + read_row[:, None] * INPUTS
    w = weight + read_column.to(tl.int64)[:, None] * INPUTS
    inside = tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, (INPUTS + DEPTH - 1) // DEPTH):
        place = step * DEPTH + inside
        if INPUTS % DEPTH == 0:
            left = tl.load(x + place[None, :])
            right = tl.load(w + place[None, :])
        else:
            left = tl.load(x + place[None, :], mask=(place < INPUTS)[None, :], other=0.0)
            right = tl.load(w + place[None, :], mask=(place < INPUTS)[None, :], other=0.0)
        part = tl.dot(left, tl.trans(right.to(left.dtype)), input_precision=PRECISION)
        number = step if SCALES > 1 else 0
        total += part * tl.load(scale + number)[None, :]
    if BIASED:
        total += tl.load(bias + read_column).to(tl.float32)[None, :]
    target = output + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    tl.store(target, total.to(output.dtype.element_ty), mask=(row < rows)[:, None] & (column < OUTPUTS)[None, :])
