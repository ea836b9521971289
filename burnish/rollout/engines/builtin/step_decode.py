"""StepDecoder: token-by-token decoding; the host samples and schedules after every token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.paged import PagedAttention
from burnish.models.wide import hidden_states
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager
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
    """The attention context and sampling settings are rebuilt only when the batch or its blocks change."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        invariant = options.device.type == "cpu" if options.invariant is None else options.invariant
        self.runner = ModelRunner(
            options, self._prefill_attention, block_size=BLOCK_SIZE, invariant=invariant, use_cpu_kernels=True
        )
        self.blocks = BlockManager(BLOCK_SIZE, options.prefix_caching, exact_only=self.runner.invariant)
        self._batch: list[SequenceState] | None = None
        self._version = -1
        self._attention: BlockDecode | CpuDecode
        self._sampling: SamplingBatch
        self._offsets: Tensor  # SequenceState.offset of the batch

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.runner.remarks

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
        """One token for every running sequence."""
        if not self._has_room(scheduler.running):
            scheduler.grow({sequence: sequence.num_cached + 1 for sequence in scheduler.running})
        if scheduler.running:
            sampled = self._decode(scheduler.running)
            scheduler.counts["decode_steps"] += 1
            scheduler.append(scheduler.running, sampled)

    def flush(self, scheduler: Scheduler) -> None:
        """Every token is on the host already."""

    def take_counts(self) -> dict[str, int]:
        return {}

    def fail(self, scheduler: Scheduler) -> None:
        """Nothing is in flight between two steps."""

    @torch.inference_mode()
    def _decode(self, sequences: list[SequenceState]) -> SampledTokens:
        self._prepare(sequences)
        attention, runner = self._attention, self.runner
        tokens = torch.tensor([s.tokens[-1] for s in sequences] + [0] * attention.pad, device=runner.device)
        positions = F.pad(attention.lengths + self._offsets, (0, attention.pad))
        hidden = hidden_states(runner.model, tokens, positions, attention)
        if runner.routing is not None:
            runner.keep_experts(self._slots(sequences))
        index = torch.tensor([len(sequence.tokens) for sequence in sequences], device=runner.device)
        sampled = sample_to_host(runner.logits(hidden)[: len(sequences)], self._sampling, index)
        attention.advance()
        return sampled

    def _slots(self, sequences: Sequence[SequenceState]) -> Tensor:
        """Where the newest token of each sequence is in the cache."""
        size = self.blocks.block_size
        places = [(sequence.block_table, *divmod(sequence.num_cached, size)) for sequence in sequences]
        return torch.tensor([table[block] * size + rest for table, block, rest in places], device=self.runner.device)

    def _is_prepared(self, sequences: list[SequenceState]) -> bool:
        return self._batch is sequences and self._version == self.blocks.version

    def _has_room(self, sequences: list[SequenceState]) -> bool:
        """Whether the next token of every sequence is known to have a place."""
        return self._is_prepared(sequences) and self._attention.tokens_left > 0

    def _prepare(self, sequences: list[SequenceState]) -> None:
        if self._is_prepared(sequences):
            return
        self._attention = self._decode_attention(sequences)
        self._sampling = self.runner.sampling_batch(sequences)
        self._offsets = torch.tensor([sequence.offset for sequence in sequences], device=self.runner.device)
        self._batch, self._version = sequences, self.blocks.version

    def _decode_attention(self, sequences: list[SequenceState]) -> BlockDecode | CpuDecode:
        pad = padding(len(sequences), self.runner.row_multiple)
        cache, lengths = self.blocks.open_cache, [sequence.num_cached for sequence in sequences]
        if self.runner.cpu_kernels is not None:
            tables = [sequence.block_table for sequence in sequences]
            return CpuDecode(cache, self.runner.cpu_kernels.decode, tables, lengths, pad)
        self.blocks.compact(sequences)
        tables = [sequence.block_table for sequence in sequences]
        shared = {block for table in tables for block in table if self.blocks.pool.is_shared(block)}
        return BlockDecode(cache, tables, lengths, shared, pad)
