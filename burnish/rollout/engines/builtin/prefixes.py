"""PrefixCache: full blocks of prompts, kept for other prompts that begin alike."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from burnish.rollout.engines.builtin.blocks import BLOCK, BlockPool


class PrefixCache:
    """Blocks by a hash of all tokens up to their end. It reads each itself, so that it outlives the rows.

    The blocks are those of the present weights: new ones clear it. The least recently used goes first when blocks run
    out.
    """

    def __init__(self, pool: BlockPool, block: int = BLOCK) -> None:
        self.pool = pool
        self.block = block
        self.blocks: OrderedDict[bytes, int] = OrderedDict()

    def match(self, ids: Sequence[int]) -> list[int]:
        """The longest known beginning of a prompt, each block read once more. Its last token is never part of it."""
        found: list[int] = []
        used: list[bytes] = []
        for name in block_names(ids[: len(ids) - 1], self.block):
            if name not in self.blocks:
                break
            found.append(self.blocks[name])
            used.append(name)
        for block in found:
            self.pool.share(block)
        for name in reversed(used):  # the beginning last: without it the rest is of no use
            self.blocks.move_to_end(name)
        return found

    def keep(self, ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Remember the full blocks of these tokens."""
        for name, block in reversed(list(zip(block_names(ids, self.block), blocks, strict=False))):
            if name not in self.blocks:
                self.pool.share(block)
                self.blocks[name] = block

    def make_room(self, blocks: int) -> None:
        """Let go of blocks that nobody else reads, until so many are free."""
        for name, block in list(self.blocks.items()):
            if self.pool.num_free >= blocks:
                return
            if not self.pool.is_shared(block):
                del self.blocks[name]
                self.pool.drop(block)

    def clear(self) -> None:
        for block in self.blocks.values():
            self.pool.drop(block)
        self.blocks.clear()


def block_names(ids: Sequence[int], block: int = BLOCK) -> Iterator[bytes]:
    """A name for each full block: a hash of its tokens and of the name before."""
    name = b""
    for end in range(block, len(ids) + 1, block):
        name = hashlib.blake2b(name + array("q", ids[end - block : end]).tobytes(), digest_size=16).digest()
        yield name
