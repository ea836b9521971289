"""StepRunner: ModelRunner with a KV cache and passes of one new token per sequence (step_decode.StepDecoder)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.paged import PagedAttention
from burnish.models.tensor_group import on_all_ranks
from burnish.models.wide import hidden_states
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.decode_plan import uses_triton
from burnish.rollout.engines.builtin.invariant import padding
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE, KVCache, Segment
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.rollout.engines.builtin.native.decode import CpuDecode
from burnish.rollout.engines.builtin.paged_attention import BlockDecode, BlockPrefill, sequence_rows
from burnish.sizing import cache_blocks


class StepRunner(ModelRunner):
    """The attention context of decoding is rebuilt only when the batch or its blocks change."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        invariant = options.device.type == "cpu" if options.invariant is None else options.invariant
        super().__init__(
            options,
            self._prefill_attention,
            block_size=BLOCK_SIZE,
            invariant=invariant,
            use_cpu_kernels=True,
            triton=uses_triton(options),
        )
        self._attention: BlockDecode | CpuDecode
        self._offsets: Tensor  # SequenceState.offset of the batch

    def _prefill_attention(self, segments: list[Segment]) -> PagedAttention:
        return BlockPrefill(segments, by_block=self.invariant)

    # memory

    @property
    def open_cache(self) -> KVCache:
        if self.cache is None:
            raise RuntimeError("the KV cache is not open")
        return self.cache

    @on_all_ranks
    def allocate_cache(self) -> None:
        """The configured share of free memory, and no more than the largest batch can use."""
        options, shape = self.options, self.shape
        num_seqs = max(options.max_num_seqs, options.max_sessions)
        least, most = cache_blocks(options.max_model_len, num_seqs, shape.block_size, device_loop=False)
        affordable = int(free_bytes(options.device) * options.memory_share) // shape.block_bytes
        if self.group is not None:
            affordable = self.group.min(affordable)
        num_blocks = max(least, min(most, affordable))  # one sequence always fits
        self.bind(KVCache(shape, num_blocks, options.device))

    @on_all_ranks
    def free_cache(self) -> None:
        self.unbind()
        self._wait_for_ranks()

    @on_all_ranks
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.open_cache.copy_blocks(sources, targets)

    # decoding

    @on_all_ranks
    def start_decoding(
        self,
        tables: list[list[int]],
        lengths: list[int],
        offsets: list[int],
        shared: Collection[int],
        counts: Sequence[int] | None = None,
    ) -> None:
        """A new batch: blocks and cached tokens of each sequence, and the blocks that several of them use.

        `counts`: rows of each sequence, by default one; each is one token further than the row before it.
        """
        pad = padding(len(tables) if counts is None else sum(counts), self.row_multiple)
        self._offsets = torch.tensor(offsets, device=self.device)
        if counts is not None:
            row_of, depth = sequence_rows(counts)
            self._offsets = self._offsets[torch.from_numpy(row_of).to(self.device)]
        if self.cpu_kernels is not None:
            self._attention = CpuDecode(self.open_cache, self.cpu_kernels.decode, tables, lengths, pad, counts)
            return
        if counts is not None:
            tables = [tables[row] for row in row_of.tolist()]
            lengths = [lengths[row] + place for row, place in zip(row_of.tolist(), depth.tolist(), strict=True)]
        self._attention = BlockDecode(self.open_cache, tables, lengths, set(shared), pad)

    @property
    def tokens_left(self) -> int:
        """How many more tokens the blocks of every sequence hold."""
        return self._attention.tokens_left

    @on_all_ranks
    @torch.inference_mode()
    def decode(self, tokens: list[int]) -> Tensor:
        """[sequences and padding, hidden] of the newest token of each sequence."""
        attention = self._attention
        ids = torch.tensor(tokens + [0] * attention.pad, device=self.device)
        hidden = hidden_states(self.model, ids, F.pad(attention.lengths + self._offsets, (0, attention.pad)), attention)
        attention.advance()
        return hidden
