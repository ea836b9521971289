"""GraphDecoder: decode loop that runs on the device, with CUDA graphs where there are some.

The host synchronizes every `sync_interval` tokens to retire and admit sequences, and processes a window of tokens while
the device generates the next. Between two steps the device is idle, so pause, abort and new weights can act at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.compiled import compile_tower
from burnish.models.kernels.sample import log_probs_of, measure_chunks, sample_tokens
from burnish.models.kernels.tuning import num_members
from burnish.models.load import load_config
from burnish.models.paged import PagedAttention
from burnish.models.parts import head_weight, logit_softcap
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager
from burnish.rollout.engines.builtin.decode_layers import DecodeLayers, UnsupportedLayersError
from burnish.rollout.engines.builtin.decode_plan import CACHE_DTYPES, decode_plan
from burnish.rollout.engines.builtin.decode_step import DecodeStep, StepBuffers
from burnish.rollout.engines.builtin.device_batch import DeviceBatch, SamplingMode
from burnish.rollout.engines.builtin.draft_policy import LoopPolicy
from burnish.rollout.engines.builtin.drafter import Drafter
from burnish.rollout.engines.builtin.graphs import StepGraphs
from burnish.rollout.engines.builtin.invariant_attention import InvariantPaged
from burnish.rollout.engines.builtin.kv_cache import KVCache, Segment, blocks_for
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.rollout.engines.builtin.paged_attention import DevicePrefill
from burnish.rollout.engines.builtin.sampling import SampledTokens, SamplingBatch, sample, top_tokens
from burnish.rollout.engines.builtin.scheduler import Scheduler
from burnish.rollout.engines.builtin.sequence import NO_SLOT, PromptState, SequenceState
from burnish.rollout.engines.builtin.shared_prefix import PrefixClusters
from burnish.rollout.engines.builtin.verify_step import DraftRows, VerifyStep, draft_depths
from burnish.rollout.engines.builtin.vmm import Region, allocate_region
from burnish.rollout.engines.builtin.window import BatchState, Window, WindowTokens
from burnish.rollout.stop import Finish, finish
from burnish.sizing import FIRST_TOKEN_BATCH, cache_blocks, max_chunk_rows


class DeviceMemory(NamedTuple):
    """Tensors that keep their addresses for the lifetime of the engine."""

    region: Region
    cache: KVCache
    logits: Tensor
    batch: DeviceBatch
    prefixes: PrefixClusters | None
    drafts: DraftRows | None


class GraphDecoder:
    """Blocks for the tokens of a window are allocated before it; tables and settings are sent only when they change."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.plan = decode_plan(options, load_config(options.model).get_text_config().model_type)
        self.runner = ModelRunner(
            options,
            self._prefill_attention,
            block_size=self.plan.block_size,
            invariant=False,
            use_cpu_kernels=False,
            triton=self.plan.triton,
            invariant_kernels=self.plan.invariant,
            cache_dtype=CACHE_DTYPES[self.plan.kv_cache_dtype],
        )
        if self.plan.compiled:
            compile_tower(self.runner.model)
        self.blocks = BlockManager(self.plan.block_size, options.prefix_caching, exact_only=False)
        self.eos_ids = frozenset(options.eos_ids)
        self.layers, self.remarks = self._explicit_layers()
        self.graphs = StepGraphs(self.runner.model, self.plan, self._make_step, self._deactivate)
        self.drafter = None
        if options.drafts is not None:
            depths = draft_depths(options.drafts.num_tokens)
            limits = replace(options.drafts, num_tokens=depths[-1])
            self.drafter = Drafter(limits, LoopPolicy(depths), options.device)
        self.memory: DeviceMemory | None = None
        self.host_syncs = self.graph_replays = self.kv_tokens_read = self.kv_tokens_saved = 0
        self._dummy_slot = 0
        self._started = 0.0  # when the last steps were launched, by the drafter's clock
        self._running: list[SequenceState] | None = None  # the scheduler's list that the device's batch was made from
        self._grown: list[SequenceState] = []  # sequences with new blocks that the device does not have
        self._unread: Window | None = None  # synchronized, but not appended to the sequences yet

    def _explicit_layers(self) -> tuple[DecodeLayers | None, tuple[str, ...]]:
        """Those of small batches, and what to report at the start of a run."""
        remarks = (*self.runner.remarks, *self.plan.remarks)
        if not self.plan.few_rows:
            return None, remarks
        try:
            return DecodeLayers(self.runner.model, self.options.max_model_len, self.plan.triton), remarks
        except UnsupportedLayersError as reason:
            return None, (*remarks, f"engine_kwargs.builtin.few_rows has no effect: {reason}")

    @property
    def drafts(self) -> bool:
        return self.drafter is not None

    @property
    def allocated(self) -> DeviceMemory:
        if self.memory is None:
            raise RuntimeError("the KV cache is not open")
        return self.memory

    @property
    def batch(self) -> DeviceBatch:
        return self.allocated.batch

    # memory

    def open_cache(self) -> None:
        """The first time, allocate the configured share of free memory; later, the same at the same addresses."""
        if self.memory is None:
            self.memory = self._allocate()
            self.runner.bind(self.memory.cache)
        else:
            self.memory.region.restore()
        self.blocks.open(self.memory.cache)
        self._dummy_slot = self.blocks.pool.take() * self.blocks.block_size
        self._running, self._grown = None, []

    def _allocate(self) -> DeviceMemory:
        options, shape, device = self.options, self.runner.shape, self.options.device
        row_blocks = blocks_for(options.max_model_len, shape.block_size)
        num_seqs = max(options.max_num_seqs, options.max_sessions)
        least, most = cache_blocks(options.max_model_len, num_seqs, shape.block_size, device_loop=True)
        num_slots = num_rows = max(options.max_num_seqs, *self.plan.capture_sizes, 1)
        model = self.runner.model
        vocabulary, dtype = head_weight(model).shape[0], model.dtype
        drafts, width = None, 1
        if self.drafter is not None:
            depths = draft_depths(self.drafter.options.num_tokens)
            drafts, width = DraftRows(num_slots, depths, device), 1 + depths[-1]
            num_rows = max(num_rows, min(num_slots, self.drafter.options.max_num_seqs) * width)
        logits_rows = min(num_rows, max_chunk_rows(vocabulary, dtype.itemsize, device.type))
        logits_bytes = logits_rows * vocabulary * dtype.itemsize
        affordable = (int(free_bytes(device) * options.memory_share) - logits_bytes) // shape.block_bytes
        num_blocks = max(least, min(most, affordable))  # one sequence always fits
        num_bytes, num_tensors = num_blocks * shape.block_bytes + logits_bytes, 2 * shape.layers + 1
        region = allocate_region(device, num_bytes, num_tensors, beside=options.beside)
        cache = KVCache(shape, num_blocks, device, region.carve)
        logits = region.carve((logits_rows, vocabulary), dtype)
        tokens_per_sync = max(self.plan.sync_interval, width)
        batch = DeviceBatch(num_slots, row_blocks + 1, options.max_model_len, vocabulary, tokens_per_sync, device)
        prefixes = None
        if self.plan.shared_prefix:
            group = model.config.get_text_config().num_attention_heads // shape.kv_heads
            prefixes = PrefixClusters(num_slots, num_members(group), shape.block_size, device)
        return DeviceMemory(region, cache, logits, batch, prefixes, drafts)

    def close_cache(self) -> None:
        """Free the memory but keep its addresses, so that captured graphs stay valid."""
        if self.blocks.cache is not None and self.memory is not None:
            self.memory.region.release()
        self.blocks.close()  # the model keeps its references to the released tensors, as captured graphs do
        self._running, self._grown = None, []

    def wake(self) -> None:
        """Take the memory now, so that the time counts as waking and not as the first request."""
        if self.memory is not None and self.blocks.cache is None:
            self.open_cache()

    def release_weights(self) -> None:
        """New weights will be at other addresses."""
        self.runner.release_weights()
        self.graphs.clear()
        if self.layers is not None:
            self.layers.forget()

    # passes

    def _prefill_attention(self, segments: list[Segment]) -> PagedAttention:
        cache, shape = self.allocated.cache, self.runner.shape
        if self.plan.invariant:
            heads = self.runner.model.config.get_text_config().num_attention_heads
            return InvariantPaged.prefill(cache, segments, heads // shape.kv_heads)
        return DevicePrefill(cache, segments, self.plan.triton)

    @torch.inference_mode()
    def first_tokens(self, sequences: Sequence[SequenceState], prompts: Sequence[PromptState]) -> SampledTokens:
        """Sample each sequence's first token from its prompt's logits; one host sync."""
        parts, top = [], []
        for start in range(0, len(sequences), FIRST_TOKEN_BATCH):
            part = slice(start, start + FIRST_TOKEN_BATCH)
            logits = torch.stack([prompt.first_logits for prompt in prompts[part]])
            settings = self.runner.sampling_batch(sequences[part], first=True)
            if self.plan.invariant:
                sampled = self._sample_alone(sequences[part], logits, settings)
            else:
                sampled = sample(logits, settings, torch.zeros_like(settings.seed))
            parts.append(torch.stack([column.double() for column in sampled]))
            top += top_tokens(logits, settings) or [[] for _ in sequences[part]]
        tokens, log_probs = torch.cat(parts, dim=1).tolist()
        self.host_syncs += 1
        return SampledTokens([int(token) for token in tokens], log_probs, top if any(top) else None)

    def _sample_alone(
        self, sequences: Sequence[SequenceState], logits: Tensor, settings: SamplingBatch
    ) -> tuple[Tensor, Tensor]:
        """First tokens, each as if its sequence were alone, with the log-probs of training."""
        softcap, index = logit_softcap(self.runner.model), torch.zeros_like(settings.seed)
        measured = measure_chunks(logits, settings.temperature, softcap)
        options = (settings.temperature, settings.greedy.long(), settings.seed, index, softcap, measured)
        tokens, _ = sample_tokens(logits, *options)
        for row, sequence in enumerate(sequences):
            if sequence.needs_slow_sampling or sequence.request.sampling.fire:
                alone = self.runner.sampling_batch([sequence], first=True)
                tokens[row] = sample(logits[row, None], alone, index[row, None])[0][0]
        return tokens, log_probs_of(logits, settings.temperature, tokens, softcap, measured)[0]

    def step(self, scheduler: Scheduler) -> None:
        """One window of tokens for every running sequence, or one that verifies drafts."""
        drafts = self._propose(scheduler)
        num_steps = 1
        if not drafts:
            state = self._state(scheduler)
            num_steps = self._num_steps(scheduler, int(state.remaining.max()))
            self._allocate_blocks(scheduler, state, num_steps)
        if not scheduler.running:
            return
        sequences = scheduler.running
        scheduler.counts["blocks_in_use"] = max(scheduler.counts["blocks_in_use"], self.blocks.num_used)
        scheduler.counts["decode_steps"] += num_steps
        if drafts:
            self._verify(scheduler, drafts)
            return
        num_tokens_before = self.launch(sequences, num_steps)
        self.flush(scheduler)
        self._take_window(scheduler, self.sync(num_tokens_before))
        if self.drafter is not None:
            self.drafter.observe_plain(len(sequences), self._started, num_steps)

    def _state(self, scheduler: Scheduler) -> BatchState:
        state = BatchState.of(scheduler.running, self.batch)
        if state.has_new:  # the whole batch may have to be written again, from the sequences' lists
            self.flush(scheduler)
        return state

    def _allocate_blocks(self, scheduler: Scheduler, state: BatchState, num_steps: int) -> None:
        """For the next tokens of the running sequences; the newest are preempted where there are too few."""
        sequences = scheduler.running
        missing = state.missing_blocks(num_steps, self.batch.num_blocks, self.blocks.block_size)
        self._grown += scheduler.grow({sequences[number]: count for number, count in missing})

    def _propose(self, scheduler: Scheduler) -> list[list[int]]:
        """Drafts of the running sequences, where they promise to pay; every token is on the host then.

        Blocks for drafts are taken from free ones only: they preempt nothing.
        """
        drafter, drafts = self.drafter, self.allocated.drafts
        if drafter is None or drafts is None or scheduler.waiting or not drafter.is_due(scheduler.running):
            return []
        self.flush(scheduler)
        self._allocate_blocks(scheduler, self._state(scheduler), 1)
        if scheduler.waiting or not scheduler.running:  # one was preempted
            return []
        state, block_size = self._state(scheduler), self.blocks.block_size
        ahead = list(state.missing_blocks(1 + drafts.depths[-1], self.batch.num_blocks, block_size))
        missing = (
            blocks_for(count, block_size) - len(scheduler.running[number].block_table) for number, count in ahead
        )
        if sum(missing) <= self.blocks.pool.num_free:
            self._grown += scheduler.grow({scheduler.running[number]: count for number, count in ahead})
        return drafter.propose(scheduler.running, block_size)

    def _verify(self, scheduler: Scheduler, drafts: list[list[int]]) -> None:
        """One token for every running sequence, and those behind it whose drafts are right."""
        drafter, sequences = self.drafter, scheduler.running
        assert drafter is not None
        before, num_tokens = [len(sequence.tokens) for sequence in sequences], scheduler.counts["tokens"]
        depth = next(depth for depth in draft_depths(drafter.options.num_tokens) if depth >= max(map(len, drafts)))
        window = self.sync(self.launch(sequences, 1, drafts, depth), drafts)
        self._take_window(scheduler, window)
        self.flush(scheduler)
        scheduler.counts["draft_tokens"] += sum(map(len, drafts))
        scheduler.counts["draft_accepted"] += scheduler.counts["tokens"] - num_tokens - len(sequences)
        sampled = [sequence.tokens[count:] for sequence, count in zip(sequences, before, strict=True)]
        drafter.observe(sampled, len(sequences) * (1 + depth), self._started)

    def _num_steps(self, scheduler: Scheduler, remaining: int) -> int:
        """Tokens until the next sync: fewer if every sequence ends before; one while prompts wait for their prefill."""
        has_slots = len(scheduler.running) < self.options.max_num_seqs
        waits = scheduler.waiting and has_slots and not scheduler.out_of_blocks
        return 1 if waits else min(self.plan.sync_interval, remaining)

    def launch(
        self, sequences: list[SequenceState], num_steps: int, drafts: Sequence[Sequence[int]] = (), depth: int = 0
    ) -> np.ndarray:
        """Start `num_steps` steps, for which blocks are allocated; returns the response lengths before them.

        With a `depth`, steps that verify up to so many drafts of each sequence.
        """
        if self._running is not sequences:
            if self.batch.arrange(sequences, self._end_ids):
                self.graphs.clear()
            if self.allocated.prefixes is not None:
                self.allocated.prefixes.arrange(self.batch)
            self._running = sequences
        self.batch.write_tables(sequence for sequence in self._grown if sequence.slot != NO_SLOT)
        self._grown = []
        step, is_captured = self.graphs.get(len(sequences), self.batch.mode, depth)
        self._started = 0.0 if self.drafter is None else self.drafter.clock()
        num_tokens_before = self.batch.column("num_tokens").copy()
        self.batch.push()
        if self.allocated.drafts is not None and depth:
            self.allocated.drafts.push(sequences, drafts)
        for _ in range(num_steps):
            step.run()
        self.graph_replays += num_steps if is_captured else 0
        return num_tokens_before

    def sync(self, num_tokens_before: np.ndarray, drafts: Sequence[Sequence[int]] = ()) -> Window:
        """Wait for the device."""
        lengths = self.batch.column("length").copy()
        self.batch.pull()
        self.host_syncs += 1
        num_tokens = self.batch.column("length") - lengths
        self._count_reads(lengths, num_tokens, drafts)
        return Window(self.batch, num_tokens_before)

    def _count_reads(self, lengths: np.ndarray, num_tokens: np.ndarray, drafts: Sequence[Sequence[int]]) -> None:
        """Cached tokens that a layer with full attention has read in a window, and those that sharing saved it."""
        if drafts:  # each was a row, right or wrong, and read all that is before it
            num_tokens = np.zeros_like(lengths)
            for sequence, tokens in zip(self._running or (), drafts, strict=True):
                num_tokens[sequence.slot] = 1 + len(tokens)
        self.kv_tokens_read += int((num_tokens * lengths + num_tokens * (num_tokens - 1) // 2).sum())
        prefixes = self.allocated.prefixes
        if prefixes is not None and not drafts:
            saved = prefixes.found.tokens_saved(num_tokens)
            self.kv_tokens_read -= saved
            self.kv_tokens_saved += saved

    def _take_window(self, scheduler: Scheduler, window: Window) -> None:
        """Free ended sequences at once; the tokens are read during the next window, unless the host needs them now."""
        self._unread = window
        scheduler.counts["tokens"] += sum(window.num_tokens)
        ended = window.ended
        for sequence in ended:
            # Which KV a session keeps depends on the tokens, and recorded experts are read with them.
            if sequence.session is None and self.runner.routing is None:
                self.blocks.free(sequence)
        if ended:
            scheduler.remove(set(ended))
        if not scheduler.running or any(sequence.needs_host_readback for sequence in window.sequences):
            self.flush(scheduler)

    def flush(self, scheduler: Scheduler) -> None:
        """Append the tokens of the last window, and complete the sequences that it ended."""
        if self._unread is None:
            return
        stopped = set()
        for sequence, output in self._unread:
            append = self._append_until_stop if sequence.request.sampling.stop else self._append
            end = append(scheduler, sequence, output)
            if end is not None:
                if not output.ended:
                    stopped.add(sequence)
                scheduler.finish(sequence, end)
                scheduler.counts["finished"] += 1
            elif sequence.request.watch is not None:
                sequence.request.watch.check(output.tokens, sequence.tokens)
        self._unread = None
        if stopped:
            scheduler.remove(stopped)

    def take_counts(self) -> dict[str, int]:
        names = ("host_syncs", "graph_replays", "kv_tokens_read", "kv_tokens_saved")
        counts = {name: getattr(self, name) for name in names}
        self.host_syncs = self.graph_replays = self.kv_tokens_read = self.kv_tokens_saved = 0
        return counts

    def finished(self, sequence: SequenceState) -> None:
        if self.drafter is not None:
            self.drafter.finished(sequence)

    def fail(self, scheduler: Scheduler) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            scheduler.remove(set(unread.sequences))
            scheduler.running += unread.sequences

    def _append(self, scheduler: Scheduler, sequence: SequenceState, output: WindowTokens) -> Finish | None:
        sequence.tokens += output.tokens
        sequence.log_probs += output.log_probs
        sequence.versions += [scheduler.version] * len(output.tokens)
        sequence.top += output.top or []
        return finish(sequence.tokens, sequence.request.sampling, self.eos_ids, None) if output.ended else None

    def _append_until_stop(self, scheduler: Scheduler, sequence: SequenceState, output: WindowTokens) -> Finish | None:
        """The device cannot match stop strings: tokens generated beyond one are dropped."""
        for number, (token, log_prob) in enumerate(zip(output.tokens, output.log_probs, strict=True)):
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            sequence.versions.append(scheduler.version)
            sequence.top += output.top[number : number + 1] if output.top else []
            end = finish(sequence.tokens, sequence.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                scheduler.counts["tokens"] -= len(output.tokens) - number - 1
                return end
        return None

    def _end_ids(self, sequence: SequenceState) -> list[int]:
        sampling = sequence.request.sampling
        return sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_ids)})

    def _make_step(self, size: int, mode: SamplingMode, depth: int) -> DecodeStep:
        memory = self.allocated
        has_media = self.runner.family is not None
        buffers = StepBuffers(
            *(memory.batch, memory.logits, memory.cache.block_size, self._dummy_slot, has_media),
            keep_experts=None if self.runner.routing is None else self.runner.keep_experts,
            prefixes=memory.prefixes,
            layers=self.layers,
        )
        if memory.drafts is None or depth == 0:
            return DecodeStep(self.runner.model, buffers, size, mode, self.plan)
        return VerifyStep(self.runner.model, buffers, size, mode, self.plan, memory.drafts, depth)

    def _deactivate(self) -> None:
        self.batch.deactivate()
