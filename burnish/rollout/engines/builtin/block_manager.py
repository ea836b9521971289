"""BlockManager: which blocks of the KV cache belong to which sequence, prompt or session."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.models.model_input import ModelInput
from burnish.rollout.engines.builtin.kv_cache import KVCache, blocks_for
from burnish.rollout.engines.builtin.prefix_cache import PrefixCache
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState

CopyBlocks = Callable[[Sequence[int], Sequence[int]], None]


class OutOfBlocksError(Exception):
    """No free block; the scheduler preempts the newest sequence."""


class BlockPool:
    """Reference counts of blocks. The lowest free block is taken first, so that blocks in use stay a dense range."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def lowest_free(self) -> int:
        """The block that `take` would return; num_blocks if there is none."""
        return self._free[0] if self._free else self.num_blocks

    def take(self) -> int:
        if not self._free:
            raise OutOfBlocksError
        block = heapq.heappop(self._free)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference."""
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """Remove a reference; the last one frees the block."""
        self._references[block] -= 1
        if self._references[block] == 0:
            heapq.heappush(self._free, block)

    def is_shared(self, block: int) -> bool:
        return self._references[block] > 1


@dataclass
class SessionKV:
    """The cached tokens of a session whose next request has not started yet."""

    input: ModelInput
    blocks: list[int]
    expected_at: float  # when its next request is expected
    queued: int | None = None  # the number of that request in the order of arrival, once it waits for a batch slot

    def eviction_order(self, now: float) -> tuple[bool, float]:
        """The largest is evicted first: the session that will need its KV last.

        One that is overdue by t is expected in another t: latencies have long tails. Requests that already wait are
        started in the order of arrival.
        """
        return (True, abs(self.expected_at - now)) if self.queued is None else (False, self.queued)


class BlockManager:
    """Allocates, shares and frees the blocks of one KV cache.

    `exact_only`: sessions keep only KV that a prefill of the next prompt would reproduce bit by bit, which is the full
    blocks of a prompt. Decoding computes attention in another order of additions than prefill, so the KV of a response
    differs in the last bits, and a result would depend on whether the session was evicted.
    """

    def __init__(
        self,
        block_size: int,
        prefix_caching: bool,
        exact_only: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.exact_only = exact_only
        self.cache: KVCache | None = None
        self._copy_blocks: CopyBlocks = _not_open
        self.pool = BlockPool(0)
        self.prefix_cache: PrefixCache | None = None
        self.sessions: dict[str, SessionKV] = {}
        self.num_evicted = 0  # sessions
        self._arrivals = itertools.count()
        self.version = 0  # changes with every block table

    def open(self, cache: KVCache, copy_blocks: CopyBlocks | None = None) -> None:
        """`copy_blocks`: copies in the caches of all ranks, where there are several."""
        self.cache = cache
        self._copy_blocks = cache.copy_blocks if copy_blocks is None else copy_blocks
        self.pool = BlockPool(cache.num_blocks)
        self.prefix_cache = PrefixCache(self.pool, self.block_size) if self.prefix_caching else None

    def close(self) -> None:
        self.cache, self.prefix_cache, self.pool = None, None, BlockPool(0)
        self._copy_blocks = _not_open
        self.sessions.clear()
        self.version += 1

    @property
    def num_used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    # prompts

    def num_new_blocks(self, input: ModelInput, session: str | None) -> int:
        """Blocks that `allocate_prompt` will take from the pool, apart from hits in the prefix cache."""
        return blocks_for(len(input), self.block_size) - blocks_for(self._num_reusable(input, session), self.block_size)

    def allocate_prompt(self, input: ModelInput, session: str | None = None) -> PromptState:
        """Blocks for a prompt, cached ones first. OutOfBlocksError leaves the pool unchanged."""
        blocks, num_cached = self._cached_prefix(input, session)
        prompt = PromptState(input, blocks, num_scheduled=num_cached)
        try:
            blocks += self._take(blocks_for(len(input), self.block_size) - len(blocks))
        except OutOfBlocksError:
            self.free(prompt)
            raise
        return prompt

    def _cached_prefix(self, input: ModelInput, session: str | None) -> tuple[list[int], int]:
        """Blocks of the longest cached prefix, from the session or the prefix cache, and how many tokens they hold."""
        num_tokens = self._num_reusable(input, session)
        blocks: list[int] = []
        if session is not None and num_tokens:
            blocks = self.sessions.pop(session).blocks
            self._drop_blocks(blocks, keep=blocks_for(num_tokens, self.block_size))
        matched = [] if self.prefix_cache is None else self.prefix_cache.match(input)
        if len(matched) * self.block_size > num_tokens:
            self._drop_blocks(blocks)
            return matched, len(matched) * self.block_size
        self._drop_blocks(matched)
        return blocks, num_tokens

    def _num_reusable(self, input: ModelInput, session: str | None) -> int:
        """Tokens of the session's KV that this input extends."""
        if session is None or session not in self.sessions:
            return 0
        kept = self.sessions[session]
        num_tokens = min(kept.input.common_prefix(input), len(input) - 1)  # the last token's logits must be computed
        full, tail = divmod(num_tokens, self.block_size)
        # A partial block will be written to: it must be the session's own.
        if tail and (self.exact_only or self.pool.is_shared(kept.blocks[full])):
            num_tokens -= tail
        return num_tokens

    def schedule_prefill(self, prompt: PromptState, count: int) -> None:
        """The coming pass fills `count` more tokens; prompts behind it in the same pass may already share them."""
        prompt.num_scheduled += count
        if self.prefix_cache is not None:
            self.prefix_cache.insert(prompt.input, prompt.num_scheduled, prompt.blocks)

    def fork(self, sequences: Sequence[tuple[PromptState, SequenceState]]) -> None:
        """Give sequences their prompts: full blocks shared, the partial one copied. OutOfBlocksError changes nothing.

        All copies are made at once: dozens of conversations return between two host syncs, and a model has dozens of
        layers.
        """
        partial = [prompt.blocks[-1] for prompt, _ in sequences if len(prompt.input) % self.block_size]
        copies = self._take(len(partial))
        if copies:
            self._copy_blocks(partial, copies)
        unused = iter(copies)
        for prompt, sequence in sequences:
            full, tail = divmod(len(prompt.input), self.block_size)
            for block in prompt.blocks[:full]:
                self.pool.share(block)
            sequence.block_table = prompt.blocks[:full] + ([next(unused)] if tail else [])
            self.drop_session(sequence.session)
        self.version += 1

    # sequences

    def grow(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Blocks for the sequence's first `num_tokens` tokens; whether some were added.

        OutOfBlocksError leaves the sequence those it got.
        """
        table = sequence.block_table
        if num_tokens <= len(table) * self.block_size:
            return False
        self.version += 1
        while num_tokens > len(table) * self.block_size:
            table.append(self.pool.take())
        return True

    def free(self, owner: SequenceState | PromptState) -> None:
        self._drop_blocks(owner.block_table if isinstance(owner, SequenceState) else owner.blocks)
        self.version += 1

    def make_room(self, num_blocks: int) -> bool:
        """Whether `num_blocks` are free, after evicting cached prefixes and waiting sessions as far as necessary."""
        if self.pool.num_free >= num_blocks:
            return True
        if self.prefix_cache is not None:
            self.prefix_cache.evict(num_blocks)
        while self.pool.num_free < num_blocks and self.sessions:
            now = self.clock()
            self.drop_session(max(self.sessions, key=lambda name: self.sessions[name].eviction_order(now)))
            self.num_evicted += 1
            if self.prefix_cache is not None:
                self.prefix_cache.evict(num_blocks)
        return self.pool.num_free >= num_blocks

    def compact(self, sequences: Sequence[SequenceState]) -> None:
        """Move the highest blocks into holes: block-space attention computes on every block below the highest."""
        owned = [(block, s, place) for s in sequences for place, block in enumerate(s.block_table)]
        moves: list[tuple[int, int]] = []
        for block, sequence, place in sorted(owned, key=lambda entry: -entry[0]):
            if self.pool.lowest_free > block:
                break
            if not self.pool.is_shared(block):
                sequence.block_table[place] = self.pool.take()
                self.pool.drop(block)
                moves.append((block, sequence.block_table[place]))
        if moves:
            self._copy_blocks(*zip(*moves, strict=True))

    # sessions

    def retire(self, sequence: SequenceState) -> None:
        """A sequence has ended: keep its KV for its session, or free it."""
        prompt = sequence.request.input
        num_tokens = sequence.num_cached
        if self.exact_only:
            num_tokens = len(prompt) // self.block_size * self.block_size
        num_blocks = blocks_for(num_tokens, self.block_size)
        if sequence.session is not None and not sequence.stale and 0 < num_blocks <= len(sequence.block_table):
            self.drop_session(sequence.session)
            for block in sequence.block_table[:num_blocks]:
                self.pool.share(block)
            ids = (*prompt.ids, *sequence.tokens[:-1])[:num_tokens]
            self.sessions[sequence.session] = SessionKV(
                ModelInput(ids, prompt.media), sequence.block_table[:num_blocks], self.clock()
            )
        self.free(sequence)

    def expect_return(self, session: str, seconds: float) -> None:
        """The session's next request is expected in so many seconds."""
        kept = self.sessions.get(session)
        if kept is not None:
            kept.expected_at, kept.queued = self.clock() + seconds, None

    def enqueue(self, session: str | None) -> None:
        """The session's next request has come, and waits for a batch slot."""
        kept = None if session is None else self.sessions.get(session)
        if kept is not None:
            kept.queued = next(self._arrivals)

    def drop_session(self, session: str | None) -> None:
        kept = None if session is None else self.sessions.pop(session, None)
        if kept is not None:
            self._drop_blocks(kept.blocks)
            self.version += 1

    def clear_cached(self) -> None:
        """Drop everything that is kept for later requests: new weights compute other keys and values."""
        for session in list(self.sessions):
            self.drop_session(session)
        if self.prefix_cache is not None:
            self.prefix_cache.clear()

    def _drop_blocks(self, blocks: list[int], keep: int = 0) -> None:
        for block in blocks[keep:]:
            self.pool.drop(block)
        del blocks[keep:]

    def _take(self, count: int) -> list[int]:
        taken: list[int] = []
        try:
            while len(taken) < count:
                taken.append(self.pool.take())
        except OutOfBlocksError:
            self._drop_blocks(taken)
            raise
        return taken


def _not_open(sources: Sequence[int], targets: Sequence[int]) -> None:
    raise RuntimeError("the KV cache is not open")
