"""Blocks that prompts which begin alike share."""

from __future__ import annotations

import pytest

from burnish.rollout.engines.builtin.blocks import BLOCK, BlockPool
from burnish.rollout.engines.builtin.prefixes import PrefixCache, block_names

IDS = tuple(range(3 * BLOCK))


@pytest.fixture
def pool():
    return BlockPool(8)


@pytest.fixture
def known(pool):
    """The three blocks of IDS, kept and read by nobody else."""
    cache = PrefixCache(pool)
    blocks = [pool.take() for _ in range(3)]
    cache.keep(IDS, blocks)
    for block in blocks:
        pool.drop(block)
    return cache


def test_a_name_is_all_that_came_before():
    names = list(block_names(IDS))
    assert len(set(names)) == 3 and list(block_names(IDS[: BLOCK + 5])) == names[:1]
    other = (9, *IDS[1:])
    assert not set(block_names(other)) & set(names)


def test_the_longest_known_beginning(known, pool):
    assert known.match((*IDS, 5)) == [0, 1, 2]
    assert known.match((*IDS[: 2 * BLOCK], 5, 5)) == [0, 1]
    assert known.match((5, *IDS)) == []
    assert pool.is_shared(0) and pool.num_free == 5


def test_the_last_token_is_always_computed(known):
    assert known.match(IDS) == [0, 1]
    assert known.match(IDS[:BLOCK]) == []


def test_room_is_made_from_the_end_of_what_was_least_used(known, pool):
    own = pool.take()
    known.keep((7,) * BLOCK, [own])
    pool.drop(own)
    known.match((*IDS, 5))
    for block in (0, 1, 2):
        pool.drop(block)
    known.make_room(5)
    assert pool.num_free == 5 and known.match((7,) * (BLOCK + 1)) == []
    known.make_room(6)
    assert known.match((*IDS, 5)) == [0, 1]


def test_what_somebody_reads_stays(known, pool):
    known.match((*IDS[:BLOCK], 5))
    known.make_room(8)
    assert pool.num_free == 7 and list(known.blocks.values()) == [0]


def test_clear(known, pool):
    known.clear()
    assert pool.num_free == 8 and known.match((*IDS, 5)) == []
