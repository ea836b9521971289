"""Runner: the model, its cache and the three passes over them: prefill, decode, score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.models.attention import PAGED
from burnish.models.load import load_causal_lm
from burnish.models.logprobs import chunk_logits
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.rollout.builtin.blocks import BLOCK, BlockPool, blocks_for
from burnish.rollout.builtin.cache import CacheShape, DecodeContext, KVCache, PrefillContext
from burnish.rollout.builtin.invariant import make_invariant, padding
from burnish.rollout.builtin.memory import free_bytes
from burnish.rollout.builtin.rows import Prefix, Row
from burnish.rollout.builtin.sampling import SamplingRows, choose
from burnish.rollout.engine import EngineOptions


class Runner:
    """Knows tensors; the engine around it knows requests."""

    def __init__(self, options: EngineOptions, invariant: bool) -> None:
        self.options = options
        self.invariant = invariant
        self.device = options.device
        self.model = load_causal_lm(options.model, PAGED, options.dtype, empty=True).to(options.device).eval()
        self.model.requires_grad_(False)
        if invariant:
            make_invariant(self.model)
        config = self.model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.shape = CacheShape(config.num_hidden_layers, config.num_key_value_heads, head_dim, options.dtype)
        self.pool = BlockPool(0)
        self.cache: KVCache | None = None
        self._decoding: tuple[list[Row], DecodeContext, SamplingRows] | None = None

    # memory

    def open_cache(self) -> None:
        """Take the share of free memory that the run allows, and no more than the longest batch can use."""
        row_blocks = blocks_for(self.options.max_model_len)
        wanted = row_blocks * self.options.max_num_seqs + row_blocks
        affordable = int(free_bytes(self.device) * self.options.memory_share) // self.shape.block_bytes
        num_blocks = max(row_blocks + 1, min(wanted, affordable))  # one row always fits, so work always goes on
        self.pool = BlockPool(num_blocks)
        self.cache = KVCache(self.shape, num_blocks, self.device)

    def close_cache(self) -> None:
        self.cache, self.pool, self._decoding = None, BlockPool(0), None

    # passes

    @torch.inference_mode()
    def prefill(self, prefixes: Sequence[Prefix]) -> None:
        """Fill the prefixes' blocks and keep the logits of their next token."""
        segments = [len(prefix.ids) for prefix in prefixes]
        hidden = self._forward_prompts([list(p.ids) for p in prefixes], [p.blocks for p in prefixes], self.cache)
        last = torch.tensor(segments).cumsum(0) - 1
        logits = self._logits(hidden[last.to(self.device)])
        for prefix, row in zip(prefixes, logits, strict=True):
            prefix.logits = row

    @torch.inference_mode()
    def first_tokens(self, rows: Sequence[Row], prefixes: Sequence[Prefix]) -> tuple[list[int], list[float]]:
        """Sample each row's first token from its prompt's logits."""
        settings = SamplingRows.of([r.request.sampling for r in rows], [r.request.seed for r in rows], self.device)
        logits = torch.stack([prefix.logits for prefix in prefixes])
        tokens, log_probs = choose(logits, settings, torch.zeros(len(rows), dtype=torch.int64, device=self.device))
        return tokens.tolist(), log_probs.tolist()

    @torch.inference_mode()
    def decode(self, rows: list[Row]) -> tuple[list[int], list[float]]:
        """One more token for every row. Rows and blocks that stay as they were keep their tables."""
        context, settings = self._decode_context(rows)
        tokens = torch.tensor([row.tokens[-1] for row in rows] + [0] * context.pad, device=self.device)
        positions = torch.nn.functional.pad(context.lengths, (0, context.pad))
        hidden = self._backbone(tokens, positions, context)
        index = torch.tensor([len(row.tokens) for row in rows], device=self.device)
        chosen, log_probs = choose(self._logits(hidden)[: len(rows)], settings, index)
        context.advance()
        return chosen.tolist(), log_probs.tolist()

    def _decode_context(self, rows: list[Row]) -> tuple[DecodeContext, SamplingRows]:
        if self._decoding is None or self._decoding[0] is not rows:
            self._close_holes(rows)
            tables, lengths = [row.table for row in rows], [row.cached for row in rows]
            shared = {block for table in tables for block in table if self.pool.is_shared(block)}
            context = DecodeContext(self.cache, tables, lengths, shared, padding(len(rows), self.invariant))
            settings = SamplingRows.of([r.request.sampling for r in rows], [r.request.seed for r in rows], self.device)
            self._decoding = (rows, context, settings)
        return self._decoding[1], self._decoding[2]

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Log-prob of every token given those before it."""
        hidden = self._forward_prompts([list(row) for row in rows], [], None)
        scores, start = [], 0
        for row in rows:
            logits = self._logits(hidden[start : start + len(row)]).float() / temperature
            tokens = torch.tensor(row[1:], device=self.device)
            log_probs = torch.log_softmax(logits[:-1], -1).gather(-1, tokens[:, None]).squeeze(-1)
            scores.append([0.0, *log_probs.tolist()])
            start += len(row)
        return scores

    # the model

    def _forward_prompts(self, prompts: list[list[int]], blocks: list[list[int]], cache: KVCache | None) -> Tensor:
        segments = [len(prompt) for prompt in prompts]
        pad = padding(sum(segments), self.invariant)
        ids = torch.tensor([token for prompt in prompts for token in prompt] + [0] * pad, device=self.device)
        segments = segments + ([pad] if pad else [])
        positions = torch.cat([torch.arange(n) for n in segments]).to(self.device)
        return self._backbone(ids, positions, PrefillContext(cache, segments, blocks))

    def _backbone(self, ids: Tensor, positions: Tensor, context: PrefillContext | DecodeContext) -> Tensor:
        output = backbone(self.model)(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, attention_mask=None, paged=context
        )
        return output.last_hidden_state[0]

    def _logits(self, hidden: Tensor) -> Tensor:
        """[rows, V] float32; in invariant mode through the tiled head."""
        if not self.invariant:
            return chunk_logits(hidden, head_weight(self.model), 1.0, logit_softcap(self.model))
        pad = padding(len(hidden), True)
        logits = self.model.get_output_embeddings()(torch.nn.functional.pad(hidden, (0, 0, 0, pad)))[
            : len(hidden)
        ].float()
        cap = logit_softcap(self.model)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    # blocks

    def open_prefix(self, ids: tuple[int, ...]) -> Prefix:
        """Blocks for a prompt; raises OutOfBlocksError and takes none if they do not suffice."""
        return Prefix(ids, self._take(blocks_for(len(ids))))

    def fork(self, prefix: Prefix, rows: Sequence[Row]) -> None:
        """Give rows the prompt: full blocks shared, the partial one copied. OutOfBlocksError comes first."""
        full, tail = divmod(len(prefix.ids), BLOCK)
        own = self._take(len(rows)) if tail else []
        for number, row in enumerate(rows):
            for block in prefix.blocks[:full]:
                self.pool.share(block)
            row.table = prefix.blocks[:full] + ([own[number]] if tail else [])
        if tail:
            self.cache.copy_block(prefix.blocks[full], own, tail)
        self._decoding = None

    def grow(self, row: Row) -> None:
        """Make sure the row's next token has a place."""
        if row.cached // BLOCK >= len(row.table):
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
