"""StepDecoder: token-by-token decoding; the host samples and schedules after every token, or verifies drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager
from burnish.rollout.engines.builtin.decode_plan import why_by_token
from burnish.rollout.engines.builtin.draft_policy import DraftPolicy
from burnish.rollout.engines.builtin.drafter import Drafter
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE
from burnish.rollout.engines.builtin.paged_attention import sequence_rows
from burnish.rollout.engines.builtin.sampling import SampledTokens, SamplingBatch, sample_to_host
from burnish.rollout.engines.builtin.scheduler import Scheduler
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState
from burnish.rollout.engines.builtin.step_runner import StepRunner


class StepDecoder:
    """Attention context and sampling settings are rebuilt only when the batch or its blocks change.

    With a Drafter, a step verifies drafts of several tokens per sequence while few sequences run.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.runner = StepRunner(options)
        self.blocks = BlockManager(BLOCK_SIZE, options.prefix_caching, exact_only=self.runner.invariant)
        self.drafter = None
        if options.drafts is not None:
            self.drafter = Drafter(options.drafts, DraftPolicy(self.runner.row_multiple), self.runner.device)
        self._batch: list[SequenceState] | None = None
        self._version = -1
        self._sampling: SamplingBatch

    @property
    def remarks(self) -> tuple[str, ...]:
        group = self.options.tensor_group
        if self.options.device.type == "cpu":
            return self.runner.remarks
        if group is None:
            return (*self.runner.remarks, *self._invariant_remarks())
        key = f"{self.options.section}.tensor_model_parallel_size"
        slow = f"{group.size} ranks share each engine, which then decodes token by token and without CUDA graphs"
        return (*self.runner.remarks, f"{slow}; {key}=1 is faster where the model fits on one device")

    def _invariant_remarks(self) -> list[str]:
        reason = why_by_token(self.options) if self.options.invariant else None
        if reason is None:
            return []
        slow = "the engine decodes token by token and without CUDA graphs"
        return [f"{self.options.section}.invariant: {reason}, so that {slow}"]

    @property
    def drafts(self) -> bool:
        return self.drafter is not None

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
            self._append(scheduler, sequences, sampled, rows)
            drafter.observe([[sampled.tokens[row] for row in part] for part in rows], len(sampled.tokens), started)
        else:
            sampled = self._decode(sequences)
            scheduler.append(sequences, sampled)
            drafter.observe_plain(len(sequences), started)

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
            self._start_rows(sequences)
            self._version = self.blocks.version
        hidden = self.runner.decode([sequence.tokens[-1] for sequence in sequences])
        if self.runner.routing is not None:
            self.runner.keep_experts(self._slots(sequences))
        return self._sample(hidden, [len(sequence.tokens) for sequence in sequences], self._sampling)

    @torch.inference_mode()
    def _verify(self, sequences: list[SequenceState], drafts: list[list[int]]) -> SampledTokens:
        """Rows of a sequence: its newest token, then its drafts, each in its place.

        Attention reads what all rows have written before, so a row computes what decoding would compute there if the
        drafts before it were right. What wrong drafts leave in the cache is beyond `num_cached` and written again.
        """
        self._prepare(sequences)
        counts = [1 + len(draft) for draft in drafts]
        tokens = [t for s, draft in zip(sequences, drafts, strict=True) for t in (s.tokens[-1], *draft)]
        row_of, depth = sequence_rows(counts)
        index = np.array([len(sequence.tokens) for sequence in sequences])[row_of] + depth
        self._start_rows(sequences, counts)
        hidden = self.runner.decode(tokens)
        if self.runner.routing is not None:
            self.runner.keep_experts(self._slots(sequences, counts))
        self._version = -1  # sequences advance by different numbers of tokens
        return self._sample(hidden, index, self._sampling.rows(torch.from_numpy(row_of).to(self.runner.device)))

    def _slots(self, sequences: Sequence[SequenceState], counts: Sequence[int] | None = None) -> Tensor:
        """Where the tokens of each row are in the cache; `counts` rows of each sequence, by default one."""
        size = self.blocks.block_size
        places = [(s.block_table, *divmod(place, size)) for s, place in _places(sequences, counts)]
        return torch.tensor([table[block] * size + rest for table, block, rest in places], device=self.runner.device)

    def _is_prepared(self, sequences: list[SequenceState]) -> bool:
        return self._batch is sequences and self._version == self.blocks.version

    def _has_room(self, sequences: list[SequenceState]) -> bool:
        """Whether the next token of every sequence is known to have a place."""
        return self._is_prepared(sequences) and self.runner.tokens_left > 0

    def _prepare(self, sequences: list[SequenceState]) -> None:
        if self._batch is not sequences:
            self._sampling = self.runner.sampling_batch(sequences)
            self._batch, self._version = sequences, -1

    def _start_rows(self, sequences: list[SequenceState], counts: Sequence[int] | None = None) -> None:
        """Attention for `counts` rows of each sequence, by default one."""
        tables = [sequence.block_table for sequence in sequences]
        shared: set[int] = set()
        if self.runner.cpu_kernels is None:
            self.blocks.compact(sequences)
            users = Counter[int]()
            for table, count in zip(tables, counts or [1] * len(tables), strict=True):
                users.update(table * count)
            shared = {block for block, count in users.items() if count > 1 or self.blocks.pool.is_shared(block)}
        lengths, offsets = ([getattr(sequence, name) for sequence in sequences] for name in ("num_cached", "offset"))
        self.runner.start_decoding(tables, lengths, offsets, shared, counts)

    def _sample(self, hidden: Tensor, index: Sequence[int] | np.ndarray, sampling: SamplingBatch) -> SampledTokens:
        """The token behind each row, by the noise of its `index` in the response."""
        places = torch.as_tensor(index, device=self.runner.device)
        return sample_to_host(self.runner.logits(hidden)[: len(places)], sampling, places)


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
