"""What a decode step does before and after the layers, besides sampling, in one Triton kernel each instead of twenty.

decode_step.py has the same in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl
from burnish.models.kernels.tuning import next_power


def place_tokens(
    active: Tensor,  # [rows] int64, 0 or 1
    length: Tensor,  # [rows] int64: tokens in the cache
    tables: Tensor,  # [rows, blocks] int32
    block_size: int,
    dummy_slot: int,
) -> tuple[Tensor, Tensor]:
    """[rows] int64: slots of the newest tokens, and how many tokens they attend to.

    An inactive row writes to the dummy slot and attends to one token.
    """
    slots, lengths = torch.empty_like(active), torch.empty_like(active)
    rows, blocks = tables.shape
    arguments = (active, length, tables, slots, lengths, rows, dummy_slot, tables.stride(0))
    _place[(1,)](*arguments, BLOCKS=blocks, BLOCK=block_size, ROWS=next_power(rows))
    return slots, lengths


def advance(
    tokens: Tensor,  # [rows] int64, sampled
    log_probs: Tensor,  # [rows] float32
    all_tokens: Tensor,  # [rows, steps between two syncs] int64
    all_log_probs: Tensor,
    end_ids: Tensor,  # [rows, end ids] int64, filled up with a number that no token has
    step: Tensor,  # [1] int64
    columns: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],  # token, length, num_tokens, active, limit: [rows] int64
) -> None:
    """Record the tokens, and deactivate rows that have ended, by a token or by their length."""
    rows, interval = all_tokens.shape
    _advance[(1,)](
        *(tokens, log_probs, all_tokens, all_log_probs, end_ids, step, *columns, rows),
        INTERVAL=interval,
        END_IDS=end_ids.shape[1],
        ROWS=next_power(rows),
    )


@kernel
def _place(
    active,
    length,
    tables,
    slots,
    lengths,
    rows,
    dummy_slot,
    table_row,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.arange(0, ROWS)
    valid = row < rows
    alive = tl.load(active + row, mask=valid, other=0) != 0
    count = tl.load(length + row, mask=valid, other=0)
    number = tl.minimum(count // BLOCK, BLOCKS - 1)
    block = tl.load(tables + row * table_row + number, mask=valid, other=0).to(tl.int64)
    tl.store(slots + row, tl.where(alive, block * BLOCK + count % BLOCK, dummy_slot), mask=valid)
    tl.store(lengths + row, tl.where(alive, count + 1, 1), mask=valid)


@kernel
def _advance(
    tokens,
    log_probs,
    all_tokens,
    all_log_probs,
    end_ids,
    step,
    token,
    length,
    num_tokens,
    active,
    limit,
    rows,
    INTERVAL: tl.constexpr,
    END_IDS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.arange(0, ROWS)
    valid = row < rows
    now = tl.load(step)
    sampled = tl.load(tokens + row, mask=valid, other=0)
    tl.store(all_tokens + row * INTERVAL + now, sampled, mask=valid)
    tl.store(all_log_probs + row * INTERVAL + now, tl.load(log_probs + row, mask=valid, other=0.0), mask=valid)
    alive = tl.load(active + row, mask=valid, other=0)
    count = tl.load(num_tokens + row, mask=valid, other=0) + alive
    tl.store(num_tokens + row, count, mask=valid)
    tl.store(length + row, tl.load(length + row, mask=valid, other=0) + alive, mask=valid)
    tl.store(token + row, sampled, mask=valid & (alive != 0))
    ended = count >= tl.load(limit + row, mask=valid, other=0)
    for number in tl.static_range(END_IDS):
        ended = ended | (sampled == tl.load(end_ids + row * END_IDS + number, mask=valid, other=-1))
    tl.store(active + row, tl.where(ended, 0, alive), mask=valid)
    tl.debug_barrier()  # all threads have read the step
    tl.store(step, (now + 1) % INTERVAL)
