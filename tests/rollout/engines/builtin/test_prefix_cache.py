"""Blocks that prompts with a common prefix share."""

from __future__ import annotations

import pytest

from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engines.builtin.block_manager import BlockPool
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE
from burnish.rollout.engines.builtin.prefix_cache import PrefixCache

IDS = tuple(range(3 * BLOCK_SIZE))


def image(content, offset):
    return Media("image", content, offset, num_tokens=4)


@pytest.fixture
def pool():
    return BlockPool(8)


@pytest.fixture
def cache(pool):
    """The three blocks of IDS, used by no sequence."""
    cache = PrefixCache(pool, BLOCK_SIZE)
    blocks = [pool.take() for _ in range(3)]
    cache.insert(ModelInput(IDS), len(IDS), blocks)
    for block in blocks:
        pool.drop(block)
    return cache


def match(cache, *ids, media=()):
    return cache.match(ModelInput(ids, media))


def test_longest_cached_prefix(cache, pool):
    assert match(cache, *IDS, 5) == [0, 1, 2]
    assert match(cache, *IDS[: 2 * BLOCK_SIZE], 5, 5) == [0, 1]
    assert match(cache, 5, *IDS) == []
    assert pool.is_shared(0) and pool.num_free == 5


def test_the_last_token_is_always_computed(cache):
    assert match(cache, *IDS) == [0, 1]
    assert match(cache, *IDS[:BLOCK_SIZE]) == []


def test_only_full_blocks_are_inserted(pool):
    cache = PrefixCache(pool, BLOCK_SIZE)
    cache.insert(ModelInput(IDS), 2 * BLOCK_SIZE - 1, [pool.take(), pool.take()])
    assert list(cache.blocks.values()) == [0]


def test_media_are_part_of_a_prefix(cache, pool):
    """An image counts from the block that it starts in; other images and other offsets are other prefixes."""
    second = BLOCK_SIZE + 3
    assert match(cache, *IDS, 5, media=(image(b"a", second),)) == [0]
    blocks = [pool.take(), pool.take()]
    cache.insert(ModelInput(IDS, (image(b"a", second),)), 2 * BLOCK_SIZE, blocks)
    assert match(cache, *IDS, 5, media=(image(b"a", second),)) == [0, blocks[1]]
    assert match(cache, *IDS, 5, media=(image(b"b", second),)) == [0]
    assert match(cache, *IDS, 5, media=(image(b"a", second + 1),)) == [0]
    assert match(cache, *IDS, 5) == [0, 1, 2]


def test_eviction_is_least_recently_used_first_and_from_the_end_of_a_prefix(cache, pool):
    other = pool.take()
    cache.insert(ModelInput((7,) * BLOCK_SIZE), BLOCK_SIZE, [other])
    pool.drop(other)
    match(cache, *IDS, 5)
    for block in (0, 1, 2):
        pool.drop(block)
    cache.evict(5)
    assert pool.num_free == 5 and match(cache, *(7,) * (BLOCK_SIZE + 1)) == []
    cache.evict(6)
    assert match(cache, *IDS, 5) == [0, 1]


def test_blocks_in_use_are_not_evicted(cache, pool):
    match(cache, *IDS[:BLOCK_SIZE], 5)
    cache.evict(8)
    assert pool.num_free == 7 and list(cache.blocks.values()) == [0]


def test_clear(cache, pool):
    cache.clear()
    assert pool.num_free == 8 and match(cache, *IDS, 5) == []
