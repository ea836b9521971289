"""How the products of decode layers (decode_products.py) are cut into programs.

The weights of a product are read once; the faster, the more bytes are on their way at any time. So the columns and the
depth of a product are cut until its programs fill the GPU. Splits of the depth add their results in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.models.kernels.tuning import DOT, next_power

MULTIPROCESSORS = 132  # of the largest Hopper; programs are cut to fill them
ROW_TILES = (16, 32, 64, 128)  # rows of a program: all of the batch
MAX_ROWS = ROW_TILES[-1]
MAX_SPLITS = 16
SHARED_BYTES = 96 << 10  # of a program's stages: two programs fit into a multiprocessor
WIDE = 128  # columns of a program where there are enough of them to fill the GPU


class Tiling(NamedTuple):
    columns: int  # rows of the weight (outputs) per program
    depth: int  # inputs per iteration
    splits: int = 1  # programs that share the inputs of the same columns
    stages: int = 3  # tiles on their way
    warps: int = 4
    # Launch before the kernel before has ended, prefetch weights into the L2 cache, then wait for it. Hopper and later.
    overlap: bool = False


# (compute capability, product, outputs, inputs, rows of a program) -> the best that bench/decode_layer.py has found.
# Empty until measured.
TUNED: dict[tuple[tuple[int, int], str, int, int, int], Tiling] = {}


def tile_rows(rows: int) -> int:
    """The smallest tile of rows that holds the batch."""
    return next(size for size in ROW_TILES if size >= rows)


def tiling(
    capability: tuple[int, int],
    product: str,
    outputs: int,
    inputs: int,
    rows: int,
    itemsize: int,
    columns: int | None = None,
) -> Tiling:
    """The entry of the device, or the default where nothing was measured; it has `columns`, if those are given."""
    found = TUNED.get((capability, product, outputs, inputs, tile_rows(rows)))
    return found or default_tiling(outputs, inputs, rows, itemsize, columns)


def default_tiling(outputs: int, inputs: int, rows: int, itemsize: int, columns: int | None = None) -> Tiling:
    columns = columns or (WIDE if outputs >= MULTIPROCESSORS * WIDE else WIDE // 2)
    depth = min(256 // itemsize, max(DOT, next_power(inputs)))
    steps, programs = -(-inputs // depth), -(-outputs // columns)
    splits = max(1, min(steps, MAX_SPLITS, MULTIPROCESSORS // programs))
    splits = -(-steps // -(-steps // splits))  # none of them without work
    stage_bytes = (tile_rows(rows) + columns) * depth * itemsize
    stages = max(2, min(5, SHARED_BYTES // stage_bytes))
    return Tiling(columns, depth, splits, stages, 8 if tile_rows(rows) * columns >= 128 * 128 else 4)
