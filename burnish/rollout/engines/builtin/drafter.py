"""Drafter: speculative decoding of the tail of a rollout, with drafts from responses instead of a draft model.

A token is a function of its logits and its keyed noise. A decode step with drafts therefore computes the logits behind
every draft as rows of their own, samples each row with that token's noise, and keeps the tokens up to the first one
that differs from its draft: these are the tokens that decoding one by one would have sampled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch

from burnish.rollout.engine import DraftOptions
from burnish.rollout.engines.builtin.draft_index import Draft, DraftIndex
from burnish.rollout.engines.builtin.draft_policy import DraftPolicy
from burnish.rollout.engines.builtin.sequence import SequenceState


class Drafter:
    """What to draft (DraftIndex) and how much of it to verify (DraftPolicy)."""

    def __init__(self, options: DraftOptions, row_multiple: int, device: torch.device) -> None:
        self.options = options
        # On a CPU the time of this thread, which other processes do not lengthen.
        self.clock = time.thread_time if device.type == "cpu" else time.perf_counter
        self.index = DraftIndex()
        self.policy = DraftPolicy(row_multiple)
        self._proposals: list[list[Draft]] | None = None

    def propose(self, sequences: list[SequenceState], block_size: int) -> list[list[int]]:
        """Drafts to verify in this step, for each sequence; most often none."""
        self._proposals = None
        if len(sequences) > self.options.max_num_seqs or not self.policy.wants_drafts():
            return []
        started = self.clock()
        pays = self.policy.pause == 0
        is_complete = self.index.update(sequences, pays)
        if pays and not is_complete:
            return []  # too early to judge
        depth = min(self.options.num_tokens, -(-2 * self.options.max_num_seqs // len(sequences)))
        self._proposals = [self._draft(sequence, depth, block_size) for sequence in sequences]
        chances = [[draft.chance for draft in drafts] for drafts in self._proposals]
        counts = self.policy.choose(chances, self.clock() - started)
        chosen = zip(self._proposals, counts, strict=True)
        return [[draft.token for draft in drafts[:count]] for drafts, count in chosen] if any(counts) else []

    def _draft(self, sequence: SequenceState, depth: int, block_size: int) -> list[Draft]:
        """As far as its limit and its blocks reach: drafts never take blocks, which could preempt a sequence."""
        if sequence.penalties is not None:
            return []  # its distribution depends on the drafted tokens other than through the model
        limit = sequence.max_tokens - len(sequence.tokens) - 1
        room = len(sequence.block_table) * block_size - sequence.num_cached - 1
        count = min(depth, limit, room)
        return self.index.draft(sequence, count) if count > 0 else []

    def observe(self, sampled: Iterable[Sequence[int]], rows: int, started: float) -> None:
        """A step with so many rows has sampled these tokens of each sequence, whether it verified drafts or not."""
        self.policy.add_step(rows, self.clock() - started)
        for drafts, tokens in zip(self._proposals or (), sampled, strict=False):
            for draft, token in zip(drafts, tokens, strict=False):
                self.index.acceptance.add(draft.evidence, draft.token == token)
                if draft.token != token:
                    break

    def finished(self, sequence: SequenceState) -> None:
        self.index.record(sequence)
