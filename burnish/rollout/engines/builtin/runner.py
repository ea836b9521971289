"""Runner: the model, its cache and the three passes over them: prefill, decode, score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.errors import UserError
from burnish.models.attention import PAGED, PagedContext
from burnish.models.cpu.library import CannotCompileError
from burnish.models.cpu.replace import replace_with_cpu_kernels
from burnish.models.joined import Joined, Linear, join_products
from burnish.models.load import load_causal_lm
from burnish.models.logprobs import chunk_logits
from burnish.models.parts import head_weight, logit_softcap
from burnish.models.wide import hidden_states
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.blocks import BLOCK, BlockPool, OutOfBlocksError, blocks_for
from burnish.rollout.engines.builtin.cache import CacheShape, DecodeContext, KVCache, PrefillContext, Segment
from burnish.rollout.engines.builtin.invariant import TILE, can_be_invariant, make_invariant, padding, tiled_product
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.builtin.native.decode import NativeDecodeContext
from burnish.rollout.engines.builtin.native.offer import EVEN, Native, compile_for
from burnish.rollout.engines.builtin.prefixes import PrefixCache
from burnish.rollout.engines.builtin.rows import Prefix, Row, batches
from burnish.rollout.engines.builtin.sampling import Drawn, SamplingRows, draw
from burnish.rollout.engines.weights import release_weights
from burnish.sizing import cache_blocks

CPU_TOKENS = 2048  # measured: what more of them make in a layer does not stay in a CPU's caches


class Runner:
    """Knows tensors; the engine around it knows requests."""

    attention = PAGED
    joined: list[Joined]  # its products

    def __init__(self, options: EngineOptions, invariant: bool, block: int = BLOCK) -> None:
        self.options = options
        self.device = options.device
        self.model = load_causal_lm(options.model, self.attention, options.dtype, empty=True).to(options.device).eval()
        self.model.requires_grad_(False)
        self.invariant = invariant and can_be_invariant(self.model)
        if options.invariant and not self.invariant:
            raise UserError(
                f"{type(self.model).__name__} has experts, whose products depend on the batch",
                key="actor_rollout_ref.rollout.invariant",
                value=True,
                hint="actor_rollout_ref.rollout.invariant=null",
            )
        config = self.model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.shape = CacheShape(config.num_hidden_layers, config.num_key_value_heads, head_dim, options.dtype, block)
        self.pool = BlockPool(0)
        self.cache: KVCache | None = None
        self.known: PrefixCache | None = None
        self._decoding: tuple[list[Row], DecodeContext | NativeDecodeContext, SamplingRows] | None = None
        self.remarks: tuple[str, ...] = ()  # what the run should say at its start
        self.native = self._compiled(config.num_attention_heads // config.num_key_value_heads)
        self._prepare_products()

    def _compiled(self, group: int) -> Native | None:
        """What there is in C for this model on this device."""
        if self.attention != PAGED:
            return None
        try:
            return compile_for(self.shape, group, self.device)
        except CannotCompileError as error:
            self.remarks = (f"decoding is computed by torch, at about half the speed: {error}",)
            return None

    def _prepare_products(self) -> None:
        """Fewer and wider ones, whose bits do not depend on the batch where that is asked."""
        self.product: Linear = tiled_product if self.invariant else F.linear
        self.multiple = TILE if self.invariant else 1  # of which the number of rows in a pass is
        if self.native is not None:
            self.product, self.multiple = self.native.layers.product, EVEN if self.invariant else 1
        self.joined = join_products(self.model, self.product)
        if self.native is not None:
            replace_with_cpu_kernels(self.model, self.native.layers)
        elif self.invariant:
            make_invariant(self.model)

    @property
    def block(self) -> int:
        """Tokens of a block of the cache."""
        return self.shape.block

    # memory

    def open_cache(self) -> None:
        """Take the share of free memory that the run allows, and no more than the longest batch can use."""
        least, most = cache_blocks(self.options.max_model_len, self.options.max_num_seqs, self.block, device_loop=False)
        affordable = int(free_bytes(self.device) * self.options.memory_share) // self.shape.block_bytes
        num_blocks = max(least, min(most, affordable))  # one row always fits, so work always goes on
        self.pool = BlockPool(num_blocks)
        self.known = PrefixCache(self.pool, self.block) if self.options.prefix_caching else None
        self.cache = KVCache(self.shape, num_blocks, self.device)

    def release_weights(self) -> None:
        """Give their memory back until new ones come."""
        for group in self.joined:
            group.part()
        self.joined = []
        release_weights(self.model)

    def close_cache(self) -> None:
        self.cache, self.known, self.pool, self._decoding = None, None, BlockPool(0), None
        if self.native is not None:
            self.native.layers.forget()

    # passes

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[tuple[Prefix, int]]) -> None:
        """Fill the blocks of each prompt's last so many planned tokens; at its end keep the logits of what follows."""
        for part in batches(pieces, CPU_TOKENS if self.device.type == "cpu" else None):
            self._prefill(part)

    def _prefill(self, pieces: Sequence[tuple[Prefix, int]]) -> None:
        segments = [Segment(count, prefix.planned - count, prefix.blocks) for prefix, count in pieces]
        tokens = [token for prefix, count in pieces for token in prefix.ids[prefix.planned - count : prefix.planned]]
        hidden = self._forward_prompts(tokens, segments, self.cache)
        ends = torch.tensor([segment.length for segment in segments]).cumsum(0) - 1
        ended = [number for number, (prefix, _) in enumerate(pieces) if prefix.left == 0]
        if ended:
            logits = self._logits(hidden[ends[ended].to(self.device)])
            for number, row in zip(ended, logits, strict=True):
                pieces[number][0].logits = row

    @torch.inference_mode()
    def first_tokens(self, rows: Sequence[Row], prefixes: Sequence[Prefix]) -> Drawn:
        """Sample each row's first token from its prompt's logits."""
        logits = torch.stack([prefix.logits for prefix in prefixes])
        index = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
        return draw(logits, self._settings(rows, first=True), index)

    @torch.inference_mode()
    def decode(self, rows: list[Row]) -> Drawn:
        """One more token for every row. Rows and blocks that stay as they were keep their tables."""
        context, settings = self._decode_context(rows)
        tokens = torch.tensor([row.tokens[-1] for row in rows] + [0] * context.pad, device=self.device)
        positions = torch.nn.functional.pad(context.lengths, (0, context.pad))
        hidden = hidden_states(self.model, tokens, positions, context)
        index = torch.tensor([len(row.tokens) for row in rows], device=self.device)
        drawn = draw(self._logits(hidden)[: len(rows)], settings, index)
        context.advance()
        return drawn

    def _decode_context(self, rows: list[Row]) -> tuple[DecodeContext | NativeDecodeContext, SamplingRows]:
        if self._decoding is None or self._decoding[0] is not rows:
            self._decoding = (rows, self._new_context(rows), self._settings(rows))
        return self._decoding[1], self._decoding[2]

    def _new_context(self, rows: list[Row]) -> DecodeContext | NativeDecodeContext:
        pad, lengths = padding(len(rows), self.multiple), [row.cached for row in rows]
        if self.native is not None:
            return NativeDecodeContext(self.cache, self.native.decode, [row.table for row in rows], lengths, pad)
        self._close_holes(rows)
        tables = [row.table for row in rows]
        shared = {block for table in tables for block in table if self.pool.is_shared(block)}
        return DecodeContext(self.cache, tables, lengths, shared, pad)

    def _settings(self, rows: Sequence[Row], first: bool = False) -> SamplingRows:
        requests = [row.request for row in rows]
        seeds, pasts = [request.seed for request in requests], [row.past for row in rows]
        return SamplingRows.of([request.sampling for request in requests], seeds, self.device, pasts, first)

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Log-prob of every token given those before it."""
        hidden = self._forward_prompts([token for row in rows for token in row], [Segment(len(r)) for r in rows], None)
        scores, start = [], 0
        for row in rows:
            logits = self._logits(hidden[start : start + len(row)]).float() / temperature
            tokens = torch.tensor(row[1:], device=self.device)
            log_probs = torch.log_softmax(logits[:-1], -1).gather(-1, tokens[:, None]).squeeze(-1)
            scores.append([0.0, *log_probs.tolist()])
            start += len(row)
        return scores

    # the model

    def _forward_prompts(self, tokens: list[int], segments: list[Segment], cache: KVCache | None) -> Tensor:
        pad = padding(len(tokens), self.multiple)
        ids = torch.tensor(tokens + [0] * pad, device=self.device)
        segments = segments + ([Segment(pad)] if pad else [])
        positions = torch.cat([torch.arange(s.start, s.start + s.length) for s in segments]).to(self.device)
        return hidden_states(self.model, ids, positions, self._prefill_context(segments, cache))

    def _prefill_context(self, segments: list[Segment], cache: KVCache | None) -> PagedContext:
        return PrefillContext(cache, segments, by_block=self.invariant)

    def _logits(self, hidden: Tensor) -> Tensor:
        """[rows, V] float32; where it is another than F.linear, by the product that the layers have."""
        if self.product is F.linear:
            return chunk_logits(hidden, head_weight(self.model), 1.0, logit_softcap(self.model))
        pad = padding(len(hidden), self.multiple)
        logits = self.model.get_output_embeddings()(torch.nn.functional.pad(hidden, (0, 0, 0, pad)))[
            : len(hidden)
        ].float()
        cap = logit_softcap(self.model)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    # blocks

    def open_prefix(self, ids: tuple[int, ...]) -> Prefix:
        """Blocks for a prompt, known ones first; raises OutOfBlocksError and takes none if they do not suffice."""
        known = [] if self.known is None else self.known.match(ids)
        prefix = Prefix(ids, known, planned=len(known) * self.block)
        try:
            prefix.blocks = [*known, *self._take(blocks_for(len(ids), self.block) - len(known))]
        except OutOfBlocksError:
            self.drop(prefix)
            raise
        return prefix

    def plan(self, prefix: Prefix, count: int) -> None:
        """The coming pass fills so many more tokens; prompts behind it in that pass may read them already."""
        prefix.planned += count
        if self.known is not None:
            self.known.keep(prefix.ids[: prefix.planned], prefix.blocks)

    def make_room(self, blocks: int) -> bool:
        """Are there so many free blocks, if need be without known ones that nobody reads?"""
        if self.known is not None and self.pool.num_free < blocks:
            self.known.make_room(blocks)
        return self.pool.num_free >= blocks

    def forget(self) -> None:
        """Other weights make other keys and values."""
        if not self.joined:  # they have come back after a deep sleep
            self.joined = join_products(self.model, self.product)
        if self.native is not None:
            self.native.layers.forget()
        if self.known is not None:
            self.known.clear()

    def fork(self, prefix: Prefix, rows: Sequence[Row]) -> None:
        """Give rows the prompt: full blocks shared, the partial one copied. OutOfBlocksError comes first."""
        full, tail = divmod(len(prefix.ids), self.block)
        own = self._take(len(rows)) if tail else []
        for number, row in enumerate(rows):
            for block in prefix.blocks[:full]:
                self.pool.share(block)
            row.table = prefix.blocks[:full] + ([own[number]] if tail else [])
        if tail:
            self.cache.copy_block(prefix.blocks[full], own, tail)
        self._decoding = None

    def has_room(self, rows: list[Row]) -> bool:
        """Is it known that the next token of all these rows has a place?"""
        return self._decoding is not None and self._decoding[0] is rows and self._decoding[1].room > 0

    def grow(self, row: Row) -> None:
        """Make sure the row's next token has a place."""
        if row.cached // self.block >= len(row.table):
            row.table.append(self.pool.take())
            self._decoding = None

    def drop(self, owner: Row | Prefix) -> None:
        """Give the blocks of a row or a prefix back."""
        blocks = owner.table if isinstance(owner, Row) else owner.blocks
        for block in blocks:
            self.pool.drop(block)
        blocks.clear()
        self._decoding = None

    def _close_holes(self, rows: list[Row]) -> None:
        """Move the highest blocks into holes that finished rows left: every block below the highest is computed on."""
        owned = [(block, row, place) for row in rows for place, block in enumerate(row.table)]
        moves: list[tuple[int, int]] = []
        for block, row, place in sorted(owned, key=lambda entry: -entry[0]):
            if self.pool.lowest_free > block:
                break
            if not self.pool.is_shared(block):
                row.table[place] = self.pool.take()
                self.pool.drop(block)
                moves.append((block, row.table[place]))
        if moves:
            self.cache.move_blocks(*zip(*moves, strict=True))

    def _take(self, count: int) -> list[int]:
        taken: list[int] = []
        try:
            while len(taken) < count:
                taken.append(self.pool.take())
        except Exception:
            for block in taken:
                self.pool.drop(block)
            raise
        return taken
