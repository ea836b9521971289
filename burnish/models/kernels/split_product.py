"""A matrix product of few rows in Triton, as a part of other kernels; its inputs may be split over several programs.

Then each program stores its part, and the last to arrive adds all of them in their order, so the bits do not depend on
which one that is.
"""

from __future__ import annotations

from burnish.models.kernels.lazy_triton import kernel, tl


@kernel
def split_product(
    input,
    weight,
    row,
    column,
    split,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[ROWS, COLUMNS] float32: these rows of the input times these rows of the weight, over a split of the inputs."""
    steps: tl.constexpr = (INPUTS + DEPTH - 1) // DEPTH
    share: tl.constexpr = (steps + SPLITS - 1) // SPLITS
    begin = split * share
    end = tl.minimum(begin + share, steps)
    if OVERLAP:
        _prefetch_and_wait(weight, column, begin, end, INPUTS, COLUMNS, DEPTH)
    inside = tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(begin, end):
        place = step * DEPTH + inside
        x, w = input + row[:, None] * INPUTS + place[None, :], weight + column[:, None] * INPUTS + place[None, :]
        if INPUTS % DEPTH == 0:
            left = tl.load(x)
            right = tl.load(w, eviction_policy="evict_first")
        else:
            left = tl.load(x, mask=(place < INPUTS)[None, :], other=0.0)
            right = tl.load(w, mask=(place < INPUTS)[None, :], other=0.0, eviction_policy="evict_first")
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    return total


@kernel
def _prefetch_and_wait(weight, column, begin, end, INPUTS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Let the next kernel be launched, bring this program's weights into the L2 cache, and wait for the kernel before.

    Only weights may be read before the wait.
    """
    tl.extra.cuda.gdc_launch_dependents()
    LINE: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth  # numbers of a cache line
    line = tl.arange(0, DEPTH // LINE) * LINE
    for step in range(begin, end):
        place = tl.minimum(step * DEPTH + line, INPUTS - 1)
        address = (weight + column[:, None] * INPUTS + place[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
        )
    tl.extra.cuda.gdc_wait()


@kernel
def arrive(
    partials,
    counters,
    product,
    rows,
    tile,
    split,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Store the result of a split; how many other splits of the tile had done so before."""
    row, number = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    target = partials + (tile * SPLITS + split) * (ROWS * COLUMNS) + row[:, None] * COLUMNS + number[None, :]
    tl.store(target, product, mask=(row < rows)[:, None])
    tl.debug_barrier()  # all threads have stored before one of them counts
    return tl.atomic_add(counters + tile, 1, sem="acq_rel")


@kernel
def sum_of_splits(partials, counters, row, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr):
    """Add the results of all splits, in their order; the counter is left as it was found."""
    tl.store(counters + tile, 0)
    source = partials + tile * (SPLITS * ROWS * COLUMNS) + row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for split in tl.static_range(SPLITS):  # .cg: not from this multiprocessor's own cache
        total += tl.load(source + split * (ROWS * COLUMNS), cache_modifier=".cg")
    return total
