"""PrefixCache: full blocks of prompts, kept for other prompts with the same prefix."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.models.model_input import ModelInput

if TYPE_CHECKING:
    from burnish.rollout.engines.builtin.block_manager import BlockPool


class PrefixCache:
    """Blocks by the `prefix_key` at their end (tokens and media). It holds a reference to each of them.

    The blocks belong to the current weights; new weights clear it. Eviction is least recently used first.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.blocks: OrderedDict[bytes, int] = OrderedDict()

    def match(self, input: ModelInput) -> list[int]:
        """Blocks of the longest cached prefix, each with one more reference.

        The last token is never part of it: its logits have to be computed.
        """
        num_full = (len(input) - 1) // self.block_size
        keys = list(
            itertools.takewhile(
                self.blocks.__contains__, itertools.islice(input.prefix_keys(self.block_size), num_full)
            )
        )
        blocks = [self.blocks[key] for key in keys]
        for block in blocks:
            self.pool.share(block)
        for key in reversed(keys):  # the first block last: without it the others are useless, so it must outlive them
            self.blocks.move_to_end(key)
        return blocks

    def insert(self, input: ModelInput, num_tokens: int, blocks: Sequence[int]) -> None:
        """Cache the full blocks of the first `num_tokens` tokens."""
        num_full = num_tokens // self.block_size
        keys = list(itertools.islice(input.prefix_keys(self.block_size), num_full))
        for key, block in reversed(list(zip(keys, blocks, strict=False))):
            if key not in self.blocks:
                self.pool.share(block)
                self.blocks[key] = block

    def evict(self, num_free: int) -> None:
        """Drop blocks that no sequence uses until `num_free` blocks are free."""
        for key, block in list(self.blocks.items()):
            if self.pool.num_free >= num_free:
                return
            if not self.pool.is_shared(block):
                del self.blocks[key]
                self.pool.drop(block)

    def clear(self) -> None:
        for block in self.blocks.values():
            self.pool.drop(block)
        self.blocks.clear()
