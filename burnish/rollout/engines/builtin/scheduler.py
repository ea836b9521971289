"""Scheduler: continuous batching. Which requests wait, which run, and which give up their blocks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from burnish.rollout.engine import Completion, EngineOptions
from burnish.rollout.engines.builtin.block_manager import BlockManager, OutOfBlocksError
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.rollout.engines.builtin.sampling import SampledTokens
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState
from burnish.rollout.stop import Finish, finish


class Decoder(Protocol):
    """How running sequences get their tokens: step_decode.StepDecoder or graph_decode.GraphDecoder.

    It owns the memory of the KV cache, because CUDA graphs need it at fixed addresses.
    """

    blocks: BlockManager

    @property
    def runner(self) -> ModelRunner: ...

    @property
    def remarks(self) -> tuple[str, ...]: ...

    @property
    def drafts(self) -> bool:
        """Whether it verifies drafts."""
        ...

    def open_cache(self) -> None: ...

    def close_cache(self) -> None: ...

    def wake(self) -> None: ...

    def release_weights(self) -> None: ...

    def first_tokens(self, sequences: Sequence[SequenceState], prompts: Sequence[PromptState]) -> SampledTokens: ...

    def step(self, scheduler: Scheduler) -> None:
        """One or more tokens for every running sequence."""
        ...

    def flush(self, scheduler: Scheduler) -> None:
        """Append tokens that the device has generated and the host has not read yet."""
        ...

    def take_counts(self) -> dict[str, int]:
        """Statistics since the last call."""
        ...

    def finished(self, sequence: SequenceState) -> None:
        """A response is complete."""
        ...

    def fail(self, scheduler: Scheduler) -> None:
        """Give sequences that the device has finished, but the host has not read, back to `scheduler.running`."""
        ...


class Scheduler:
    """Owns the waiting and running sequences and the prompts that they share.

    Sequences with equal `ModelInput.key` share one prefill. Prompts stay while a waiting sequence needs them.
    """

    def __init__(self, options: EngineOptions, decoder: Decoder) -> None:
        self.options = options
        self.decoder = decoder
        self.runner = decoder.runner
        self.blocks = decoder.blocks
        self.eos_ids = frozenset(options.eos_ids)
        self.version = 0  # of the weights
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []  # a new list whenever it changes: decoders compare by identity
        self.prompts: dict[bytes, PromptState] = {}  # by ModelInput.key
        self.out_of_blocks = False  # the last admission ended for want of blocks, not of token budget
        self.counts: defaultdict[str, float] = defaultdict(int)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> None:
        """Admit what fits, then decode."""
        self.admit()
        if self.running:
            self._decode()
        for name, count in self.decoder.take_counts().items():
            self.counts[name] += count
        if self.blocks.num_evicted:
            self.counts["evicted_sessions"] += self.blocks.num_evicted
            self.blocks.num_evicted = 0

    def _decode(self) -> None:
        """Decode, and count how many of the batch slots get a token; separately while requests wait for slots."""
        num_slots = self.options.max_num_seqs
        is_loaded = len(self.running) + len(self.waiting) >= num_slots
        num_steps, num_tokens = self._decoded()
        self.decoder.step(self)
        num_steps, num_tokens = (
            now - before for now, before in zip(self._decoded(), (num_steps, num_tokens), strict=True)
        )
        for kind in ("decode", "loaded") if is_loaded else ("decode",):
            self.counts[f"{kind}_slots"] += num_steps * num_slots
            self.counts[f"{kind}_tokens"] += num_tokens

    def _decoded(self) -> tuple[float, float]:
        """Decode steps, and tokens of slots: a draft that was right is a second token of its slot in the same step."""
        return self.counts["decode_steps"], self.counts["tokens"] - self.counts["draft_accepted"]

    # requests

    def enqueue(self, sequences: list[SequenceState]) -> None:
        self.waiting.extend(sequences)
        for sequence in sequences:
            self.blocks.enqueue(sequence.session)
        if any(sequence.request.priority for sequence in self.waiting):
            self.waiting = deque(sorted(self.waiting, key=lambda s: s.request.priority))  # stable: first come first

    def abort(self, futures: set[Future[Completion]]) -> None:
        self.decoder.flush(self)
        for sequence in [s for s in self.running if s.future in futures]:
            self.finish(sequence, Finish("abort"))
        self.remove({s for s in self.running if s.future in futures})
        for sequence in [s for s in self.waiting if s.future in futures]:
            sequence.complete(Finish("abort"))
            if sequence.session is not None:
                self.blocks.expect_return(sequence.session, 0.0)
        self.waiting = deque(s for s in self.waiting if s.future not in futures)
        self._free_unused_prompts()

    def fail(self, error: Exception) -> None:
        """Fail all requests and drop the cache."""
        self.decoder.fail(self)
        for sequence in [*self.running, *self.waiting]:
            if not sequence.future.done():
                sequence.future.set_exception(error)
        self.running, self.waiting = [], deque()
        self.close_cache()

    def end_session(self, session: str) -> None:
        self.blocks.drop_session(session)
        for sequence in [*self.waiting, *self.running]:
            if sequence.session == session:
                sequence.session = None

    def new_weights(self, version: int) -> None:
        """Drop all KV that later requests could reuse. Running sequences keep theirs."""
        self.version = version
        for prompt in self.prompts.values():
            self.blocks.free(prompt)
        self.prompts.clear()
        self.blocks.clear_cached()
        for sequence in self.running:
            sequence.stale = True

    def close_cache(self) -> None:
        self.prompts.clear()
        self.decoder.close_cache()

    # admission

    def admit(self) -> None:
        """Start waiting sequences, prompt by prompt, while there are batch slots, blocks and prefill tokens."""
        if not self.waiting:
            return
        if self.blocks.cache is None:
            self.decoder.open_cache()
        num_slots = self.options.max_num_seqs - len(self.running)
        candidates = [self.waiting[i] for i in range(min(num_slots, len(self.waiting)))]
        started, chunks = self._schedule_prefill(candidates)
        for sequence in started:
            sequence.start()
        if chunks:
            self.runner.prefill(chunks)
            self.counts["prefill_tokens"] += sum(count for _, count in chunks)
        if started:
            prompts = [self.prompts[sequence.request.input.key] for sequence in started]
            self.blocks.fork(list(zip(prompts, started, strict=True)))
            sampled = self.decoder.first_tokens(started, prompts)
            gone = set(started)
            self.waiting = deque(sequence for sequence in self.waiting if sequence not in gone)
            self.running = [*self.running, *started]
            self.append(started, sampled)
        self._free_unused_prompts()

    def _schedule_prefill(
        self, candidates: list[SequenceState]
    ) -> tuple[list[SequenceState], list[tuple[PromptState, int]]]:
        """Sequences that can start now, and how much of which prompts to prefill within the token budget of a pass."""
        started: list[SequenceState] = []
        chunks: list[tuple[PromptState, int]] = []
        keep: set[bytes] = set()
        budget = self.options.max_num_batched_tokens
        self.out_of_blocks = False
        for sequence in candidates:
            input = sequence.request.input
            keep.add(input.key)
            prompt = self.prompts.get(input.key)
            if prompt is None and chunks and self._chunk_size(len(input), budget) == 0:
                break
            if not self._has_room(sequence, prompt is None, len(started), keep):
                self.out_of_blocks = True
                break
            if prompt is None:
                prompt = self._open_prompt(sequence)
            if prompt.num_remaining:
                count = self._chunk_size(prompt.num_remaining, budget, alone=not chunks)
                count = self.runner.whole_chunk(prompt, count)
                if count == 0 or (chunks and count > budget):
                    break
                self.blocks.schedule_prefill(prompt, count)
                chunks.append((prompt, count))
                budget = max(0, budget - count)
            if prompt.num_remaining == 0:
                started.append(sequence)
        return started, chunks

    def _has_room(self, sequence: SequenceState, is_new: bool, num_started: int, keep: set[bytes]) -> bool:
        """Whether there are blocks for its prompt, if that is new, and one for each sequence that starts.

        The latter so that new prompts never take the last block from the first sequence.
        """
        input, session = sequence.request.input, sequence.session
        while True:
            num_new = self.blocks.num_new_blocks(input, session) if is_new else 0
            if not self._make_room(num_started + 1 + num_new, keep):
                return False
            # Making room may have evicted the very session that the prompt extends; then it needs more blocks.
            if not is_new or self.blocks.num_new_blocks(input, session) == num_new:
                return True

    def _open_prompt(self, sequence: SequenceState) -> PromptState:
        input = sequence.request.input
        prompt = self.prompts[input.key] = self.blocks.allocate_prompt(input, sequence.session)
        if self.options.prefix_caching:
            self.counts["prefix_hit_tokens"] += prompt.num_scheduled
        return prompt

    def _chunk_size(self, remaining: int, budget: int, alone: bool = False) -> int:
        """Prompt tokens for a pass: all, or whole blocks. A prompt `alone` in its pass gets at least one block."""
        if remaining <= budget:
            return remaining
        if not self.options.chunked_prefill:
            return remaining if alone else 0
        block_size = self.blocks.block_size
        whole = max(0, budget // block_size * block_size)
        return whole or (min(remaining, block_size) if alone else 0)

    def _make_room(self, num_blocks: int, keep: set[bytes]) -> bool:
        """Whether so many blocks are free, after freeing idle prompts that are not in `keep` as far as necessary."""
        for key in [key for key in self.prompts if key not in keep]:
            if self.blocks.make_room(num_blocks):
                break
            self.blocks.free(self.prompts.pop(key))
        return self.blocks.make_room(num_blocks)

    def _free_unused_prompts(self) -> None:
        """Prompts that no waiting sequence needs; running sequences hold references to the blocks they share."""
        needed = {sequence.request.input.key for sequence in self.waiting}
        for key in [key for key in self.prompts if key not in needed]:
            self.blocks.free(self.prompts.pop(key))

    # running sequences

    def grow(self, num_tokens: Mapping[SequenceState, int]) -> list[SequenceState]:
        """Blocks for so many tokens of each sequence; the newest sequences are preempted where there are too few.

        Returns the sequences whose block tables have changed.
        """
        grown = []
        for sequence, count in num_tokens.items():
            while sequence.block_table or sequence in self.running:  # else it was preempted or has ended
                try:
                    if self.blocks.grow(sequence, count):
                        grown.append(sequence)
                    break
                except OutOfBlocksError:
                    grown.append(sequence)  # it may have got some blocks
                    if self._preempt() is sequence:
                        break
        return grown

    def _preempt(self) -> SequenceState | None:
        """Free a block: cached KV first, then idle prompts, then the newest sequence, which starts again later."""
        self.decoder.flush(self)
        if self.blocks.make_room(1):
            return None
        if self.prompts:
            self.blocks.free(self.prompts.pop(next(iter(self.prompts))))
            return None
        sequence = self.running[-1]
        self.running = self.running[:-1]
        self.blocks.free(sequence)
        sequence.restart()
        self.waiting.appendleft(sequence)
        self.counts["preemptions"] += 1
        return sequence

    def append(self, sequences: list[SequenceState], sampled: SampledTokens) -> set[SequenceState]:
        """Append one token to each sequence, and complete those that have ended, which are returned."""
        done: set[SequenceState] = set()
        for sequence, top in zip(sequences, sampled.top or (), strict=False):
            sequence.top.append(top)
        for sequence, token, log_prob in zip(sequences, sampled.tokens, sampled.log_probs, strict=True):
            sequence.append(token, log_prob, self.version)
            if not (sequence.needs_look or token in self.eos_ids or len(sequence.tokens) >= sequence.max_tokens):
                continue  # the common case: this token cannot end the sequence
            end = finish(sequence.tokens, sequence.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                self.finish(sequence, end)
                done.add(sequence)
            elif sequence.request.watch is not None:
                sequence.request.watch.check((token,), sequence.tokens)
        self.counts["tokens"] += len(sequences)
        if done:
            self.counts["finished"] += len(done)
            self.remove(done)
        return done

    def finish(self, sequence: SequenceState, end: Finish) -> None:
        """Keep or free its blocks, and answer its future. The caller removes it from `running`."""
        sequence.experts = self.runner.recorded_experts(sequence)
        self.blocks.retire(sequence)
        self.decoder.finished(sequence)
        sequence.complete(end)

    def remove(self, sequences: set[SequenceState]) -> None:
        self.running = [sequence for sequence in self.running if sequence not in sequences]
