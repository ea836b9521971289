"""StepDecoder: token-by-token decoding; the host samples and schedules after every token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE
from burnish.rollout.engines.builtin.sampling import SampledTokens, SamplingBatch, sample_to_host
from burnish.rollout.engines.builtin.scheduler import Scheduler
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState
from burnish.rollout.engines.builtin.step_runner import StepRunner


class StepDecoder:
    """Attention context and sampling settings are rebuilt only when the batch or its blocks change."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.runner = StepRunner(options)
        self.blocks = BlockManager(BLOCK_SIZE, options.prefix_caching, exact_only=self.runner.invariant)
        self._batch: list[SequenceState] | None = None
        self._version = -1
        self._sampling: SamplingBatch

    @property
    def remarks(self) -> tuple[str, ...]:
        group = self.options.tensor_group
        if group is None or self.options.device.type == "cpu":
            return self.runner.remarks
        key = f"{self.options.section}.tensor_model_parallel_size"
        slow = f"{group.size} ranks share each engine, which then decodes token by token and without CUDA graphs"
        return (*self.runner.remarks, f"{slow}; {key}=1 is faster where the model fits on one device")

    # memory

    def open_cache(self) -> None:
        self.runner.allocate_cache()
        self.blocks.open(self.runner.open_cache, self.runner.copy_blocks)

    def close_cache(self) -> None:
        self.runner.free_cache()
        self.blocks.close()
        self._batch = None

    def wake(self) -> None:
        """The next request opens the cache."""

    def release_weights(self) -> None:
        self.runner.release_weights()

    # passes

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
        runner = self.runner
        hidden = runner.decode([sequence.tokens[-1] for sequence in sequences])
        if runner.routing is not None:
            runner.keep_experts(self._slots(sequences))
        index = torch.tensor([len(sequence.tokens) for sequence in sequences], device=runner.device)
        return sample_to_host(runner.logits(hidden)[: len(sequences)], self._sampling, index)

    def _slots(self, sequences: Sequence[SequenceState]) -> Tensor:
        """Where the newest token of each sequence is in the cache."""
        size = self.blocks.block_size
        places = [(sequence.block_table, *divmod(sequence.num_cached, size)) for sequence in sequences]
        return torch.tensor([table[block] * size + rest for table, block, rest in places], device=self.runner.device)

    def _is_prepared(self, sequences: list[SequenceState]) -> bool:
        return self._batch is sequences and self._version == self.blocks.version

    def _has_room(self, sequences: list[SequenceState]) -> bool:
        """Whether the next token of every sequence is known to have a place."""
        return self._is_prepared(sequences) and self.runner.tokens_left > 0

    def _prepare(self, sequences: list[SequenceState]) -> None:
        if self._is_prepared(sequences):
            return
        if self.runner.cpu_kernels is None:
            self.blocks.compact(sequences)
        tables = [sequence.block_table for sequence in sequences]
        lengths, offsets = ([getattr(s, name) for s in sequences] for name in ("num_cached", "offset"))
        shared = {block for table in tables for block in table if self.blocks.pool.is_shared(block)}
        self.runner.start_decoding(tables, lengths, offsets, shared)
        self._sampling = self.runner.sampling_batch(sequences)
        self._batch, self._version = sequences, self.blocks.version
