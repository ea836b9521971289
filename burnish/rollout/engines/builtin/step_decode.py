"""StepDecoder: token-by-token decoding; the host samples and schedules after every token, or verifies drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.paged import PagedAttention
from burnish.models.wide import hidden_states
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager
from burnish.rollout.engines.builtin.drafter import Drafter
from burnish.rollout.engines.builtin.invariant import padding
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE, KVCache, Segment
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.rollout.engines.builtin.native.decode import CpuDecode
from burnish.rollout.engines.builtin.paged_attention import BlockDecode, BlockPrefill
from burnish.rollout.engines.builtin.sampling import SampledTokens, SamplingBatch, sample_to_host
from burnish.rollout.engines.builtin.scheduler import Scheduler
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState
from burnish.sizing import cache_blocks


class StepDecoder:
    """The attention context and sampling settings are rebuilt only when the batch or its blocks change.

    With a Drafter, a step verifies drafts of several tokens per sequence while few sequences run.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        invariant = options.device.type == "cpu" if options.invariant is None else options.invariant
        self.runner = ModelRunner(
            options, self._prefill_attention, block_size=BLOCK_SIZE, invariant=invariant, use_cpu_kernels=True
        )
        self.blocks = BlockManager(BLOCK_SIZE, options.prefix_caching, exact_only=self.runner.invariant)
        self.drafter = make_drafter(options, self.runner)
        self._batch: list[SequenceState] | None = None
        self._version = -1
        self._attention: BlockDecode | CpuDecode
        self._sampling: SamplingBatch
        self._offsets: Tensor  # SequenceState.offset of the batch

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.runner.remarks

    @property
    def drafts(self) -> bool:
        return self.drafter is not None

    # memory

    def open_cache(self) -> None:
        """Allocate the configured share of free memory, and no more than the largest batch can use."""
        shape = self.runner.shape
        num_seqs = max(self.options.max_num_seqs, self.options.max_sessions)
        least, most = cache_blocks(self.options.max_model_len, num_seqs, shape.block_size, device_loop=False)
        affordable = int(free_bytes(self.options.device) * self.options.memory_share) // shape.block_bytes
        num_blocks = max(least, min(most, affordable))  # one sequence always fits
        cache = KVCache(shape, num_blocks, self.options.device)
        self.runner.bind(cache)
        self.blocks.open(cache)

    def close_cache(self) -> None:
        self.runner.unbind()
        self.blocks.close()
        self._batch = None

    def wake(self) -> None:
        """The next request opens the cache."""

    def release_weights(self) -> None:
        self.runner.release_weights()

    # passes

    def _prefill_attention(self, segments: list[Segment]) -> PagedAttention:
        return BlockPrefill(segments, by_block=self.runner.invariant)

    @torch.inference_mode()
    def first_tokens(self, sequences: Sequence[SequenceState], prompts: Sequence[PromptState]) -> SampledTokens:
        """Sample each sequence's first token from its prompt's logits."""
        logits = torch.stack([prompt.first_logits for prompt in prompts])
        index = torch.zeros(len(sequences), dtype=torch.int64, device=self.runner.device)
        return sample_to_host(logits, self.runner.sampling_batch(sequences, first=True), index)

    def step(self, scheduler: Scheduler) -> None:
        """One token for every running sequence, and those behind it whose drafts are right."""
        if not self._has_room(scheduler.running):
            scheduler.grow({sequence: sequence.num_cached + 1 for sequence in scheduler.running})
        if scheduler.running:
            scheduler.counts["decode_steps"] += 1
            if self.drafter is None:
                scheduler.append(scheduler.running, self._decode(scheduler.running))
            else:
                self._draft_and_decode(scheduler, self.drafter)

    def _draft_and_decode(self, scheduler: Scheduler, drafter: Drafter) -> None:
        sequences = scheduler.running
        drafts = drafter.propose(sequences, self.blocks.block_size)
        started = drafter.clock()
        if drafts:
            sampled = self._verify(sequences, drafts)
            rows = verified_rows(sampled.tokens, drafts)
            drafter.observe(([sampled.tokens[row] for row in part] for part in rows), len(sampled.tokens), started)
            self._append(scheduler, sequences, sampled, rows)
        else:
            sampled = self._decode(sequences)
            drafter.observe(([token] for token in sampled.tokens), len(sequences), started)
            scheduler.append(sequences, sampled)

    def _append(
        self, scheduler: Scheduler, sequences: list[SequenceState], sampled: SampledTokens, rows: list[list[int]]
    ) -> None:
        """Append each sequence's tokens one by one, so that whatever ends a response ends it at the same token."""
        num_tokens = scheduler.counts["tokens"]
        batch = list(zip(sequences, rows, strict=True))
        for depth in range(max(map(len, rows))):
            batch = [(sequence, part) for sequence, part in batch if depth < len(part)]
            done = scheduler.append([sequence for sequence, _ in batch], sampled.at([part[depth] for _, part in batch]))
            batch = [(sequence, part) for sequence, part in batch if sequence not in done]
        scheduler.counts["draft_tokens"] += len(sampled.tokens) - len(sequences)
        scheduler.counts["draft_accepted"] += scheduler.counts["tokens"] - num_tokens - len(sequences)

    def finished(self, sequence: SequenceState) -> None:
        if self.drafter is not None:
            self.drafter.finished(sequence)

    def flush(self, scheduler: Scheduler) -> None:
        """Every token is on the host already."""

    def take_counts(self) -> dict[str, int]:
        return {}

    def fail(self, scheduler: Scheduler) -> None:
        """Nothing is in flight between two steps."""

    @torch.inference_mode()
    def _decode(self, sequences: list[SequenceState]) -> SampledTokens:
        """One row per sequence: its newest token."""
        self._prepare(sequences)
        if self._version != self.blocks.version:
            self._attention, self._version = self._decode_attention(sequences), self.blocks.version
        tokens, index = [s.tokens[-1] for s in sequences], [len(s.tokens) for s in sequences]
        sampled = self._run(tokens, index, self._attention, self._offsets, self._sampling)
        if self.runner.routing is not None:
            self.runner.keep_experts(self._slots(sequences))
        self._attention.advance()
        return sampled

    @torch.inference_mode()
    def _verify(self, sequences: list[SequenceState], drafts: list[list[int]]) -> SampledTokens:
        """Rows of a sequence: its newest token, then its drafts, each in its place.

        Attention reads what all rows have written before, so a row computes what decoding would compute there if the
        drafts before it were right. What wrong drafts leave in the cache is beyond `num_cached` and written again.
        """
        self._prepare(sequences)
        counts = [1 + len(draft) for draft in drafts]
        tokens = [t for s, draft in zip(sequences, drafts, strict=True) for t in (s.tokens[-1], *draft)]
        index = [len(s.tokens) + depth for s, count in zip(sequences, counts, strict=True) for depth in range(count)]
        row_of = torch.tensor([n for n, count in enumerate(counts) for _ in range(count)], device=self.runner.device)
        attention = self._decode_attention(sequences, counts)
        sampled = self._run(tokens, index, attention, self._offsets[row_of], self._sampling.rows(row_of))
        if self.runner.routing is not None:
            self.runner.keep_experts(self._slots(sequences, counts))
        self._version = -1  # sequences advance by different numbers of tokens
        return sampled

    def _run(
        self,
        tokens: list[int],
        index: list[int],
        attention: BlockDecode | CpuDecode,
        offsets: Tensor,
        sampling: SamplingBatch,
    ) -> SampledTokens:
        """The token behind each of these, by the noise of its `index` in the response."""
        runner = self.runner
        ids = torch.tensor(tokens + [0] * attention.pad, device=runner.device)
        positions = F.pad(attention.lengths + offsets, (0, attention.pad))
        hidden = hidden_states(runner.model, ids, positions, attention)
        return sample_to_host(runner.logits(hidden)[: len(tokens)], sampling, torch.tensor(index, device=runner.device))

    def _slots(self, sequences: Sequence[SequenceState], counts: Sequence[int] | None = None) -> Tensor:
        """Where the tokens of each row are in the cache; `counts` rows of each sequence, by default one."""
        size = self.blocks.block_size
        places = [(s.block_table, *divmod(place, size)) for s, place in _places(sequences, counts)]
        return torch.tensor([table[block] * size + rest for table, block, rest in places], device=self.runner.device)

    def _is_prepared(self, sequences: list[SequenceState]) -> bool:
        return self._batch is sequences and self._version == self.blocks.version

    def _has_room(self, sequences: list[SequenceState]) -> bool:
        """Whether the next token of every sequence is known to have a place."""
        return self._is_prepared(sequences) and self._attention.tokens_left > 0

    def _prepare(self, sequences: list[SequenceState]) -> None:
        if self._batch is not sequences:
            self._sampling = self.runner.sampling_batch(sequences)
            self._offsets = torch.tensor([sequence.offset for sequence in sequences], device=self.runner.device)
            self._batch, self._version = sequences, -1

    def _decode_attention(
        self, sequences: list[SequenceState], counts: Sequence[int] | None = None
    ) -> BlockDecode | CpuDecode:
        """For `counts` rows of each sequence, by default one."""
        if self.runner.cpu_kernels is None:
            self.blocks.compact(sequences)
        places = _places(sequences, counts)
        cache, tables, lengths = self.blocks.open_cache, [s.block_table for s, _ in places], [n for _, n in places]
        pad = padding(len(places), self.runner.row_multiple)
        if self.runner.cpu_kernels is not None:
            return CpuDecode(cache, self.runner.cpu_kernels.decode, tables, lengths, pad)
        users = Counter(block for table in tables for block in table)
        shared = {block for block, count in users.items() if count > 1 or self.blocks.pool.is_shared(block)}
        return BlockDecode(cache, tables, lengths, shared, pad)


def make_drafter(options: EngineOptions, runner: ModelRunner) -> Drafter | None:
    """By default where more rows in a step cannot change a bit of the others."""
    drafts = options.drafts
    if drafts is None or not (runner.invariant if drafts.enable is None else drafts.enable):
        return None
    return Drafter(drafts, runner.row_multiple, runner.device)


def _places(sequences: Sequence[SequenceState], counts: Sequence[int] | None) -> list[tuple[SequenceState, int]]:
    """(sequence, tokens in the cache before it) of each row."""
    if counts is None:
        return [(sequence, sequence.num_cached) for sequence in sequences]
    pairs = zip(sequences, counts, strict=True)
    return [(sequence, sequence.num_cached + depth) for sequence, count in pairs for depth in range(count)]


def verified_rows(tokens: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of each sequence the rows whose sampled tokens count: up to the first one that differs from its draft."""
    rows, first = [], 0
    for draft in drafts:
        wrong = (depth for depth, token in enumerate(draft) if tokens[first + depth] != token)
        rows.append(list(range(first, first + next(wrong, len(draft)) + 1)))
        first += len(draft) + 1
    return rows
