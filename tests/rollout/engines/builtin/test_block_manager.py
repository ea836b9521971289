"""The pool of cache blocks."""

from __future__ import annotations

import pytest

from burnish.rollout.engines.builtin.block_manager import BlockPool, OutOfBlocksError
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE, blocks_for


def test_lowest_block_first():
    pool = BlockPool(4)
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    pool.drop(2)
    pool.drop(0)
    assert [pool.take(), pool.take()] == [0, 2]


def test_out_of_blocks():
    pool = BlockPool(1)
    pool.take()
    assert pool.num_free == 0
    with pytest.raises(OutOfBlocksError):
        pool.take()


def test_the_last_reference_frees():
    pool = BlockPool(2)
    block = pool.take()
    assert not pool.is_shared(block)
    pool.share(block)
    pool.share(block)
    assert pool.is_shared(block)
    pool.drop(block)
    pool.drop(block)
    assert not pool.is_shared(block) and pool.num_free == 1
    pool.drop(block)
    assert pool.num_free == 2 and pool.take() == block


def test_blocks_for():
    assert [blocks_for(n) for n in (0, 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE)] == [0, 1, 1, 2, 3]
