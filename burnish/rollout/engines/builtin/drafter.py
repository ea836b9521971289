"""Drafter: speculative decoding of the tail of a rollout, with drafts from responses instead of a draft model.

A token is a function of its logits and its keyed noise. A decode step with drafts therefore computes the logits behind
every draft as rows of their own, samples each row with that token's noise, and keeps the tokens up to the first one
that differs from its draft: these are the tokens that decoding one by one would have sampled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from burnish.rollout.engine import DraftOptions
from burnish.rollout.engines.builtin.draft_index import DraftIndex, Drafts
from burnish.rollout.engines.builtin.draft_policy import DraftPolicy
from burnish.rollout.engines.builtin.sequence import SequenceState

NONE = Drafts([], [], [])


class Drafter:
    """What to draft (DraftIndex) and how much of it to verify (DraftPolicy)."""

    def __init__(self, options: DraftOptions, policy: DraftPolicy, device: torch.device) -> None:
        self.options = options
        # On a CPU the time of this thread, which other processes do not lengthen.
        self.clock = time.thread_time if device.type == "cpu" else time.perf_counter
        self.index = DraftIndex()
        self.policy = policy
        self._proposals: list[Drafts] | None = None
        self._follows = False  # the index follows the newest tokens
        self._catches_up = False  # it does not have all of them yet
        self._seconds = 0.0  # of looking for drafts in this step

    def is_due(self, sequences: list[SequenceState]) -> bool:
        """Whether to look for drafts of these sequences in this step."""
        return len(sequences) <= self.options.max_num_seqs and (self._catches_up or self.policy.wants_drafts())

    def propose(self, sequences: list[SequenceState], block_size: int) -> list[list[int]]:
        """Drafts to verify in this step, for each sequence; most often none."""
        self._proposals, self._seconds = None, 0.0
        if not self.is_due(sequences):
            return []
        started = self.clock()
        drafts = self._propose(sequences, block_size, started)
        self._seconds = self.clock() - started
        return drafts

    def _propose(self, sequences: list[SequenceState], block_size: int, started: float) -> list[list[int]]:
        is_new = not self._follows or self._catches_up
        if not self._follows:
            self.index.restart()
        self._follows = True
        self._catches_up = not self.index.update(sequences)
        if self._catches_up:
            return []  # too early to judge
        depth = min(self.options.num_tokens, -(-2 * self.options.max_num_seqs // len(sequences)))
        self.index.prepare(sequences, depth)
        if is_new:  # what this took is booked, but says nothing about the next steps
            started = self.clock()
        self._proposals = [self._draft(sequence, depth, block_size) for sequence in sequences]
        counts = self.policy.choose([drafts.chances for drafts in self._proposals], self.clock() - started)
        if not any(counts):
            return []
        return [drafts.tokens[:count] for drafts, count in zip(self._proposals, counts, strict=True)]

    def _draft(self, sequence: SequenceState, depth: int, block_size: int) -> Drafts:
        """As far as its limit and its blocks reach: drafts never take blocks, which could preempt a sequence."""
        if sequence.penalties is not None:
            return NONE  # its distribution depends on the drafted tokens other than through the model
        num_tokens = len(sequence.tokens)
        room = len(sequence.block_table) * block_size - len(sequence.request.input) - num_tokens
        count = min(depth, sequence.max_tokens - num_tokens - 1, room)
        return self.index.draft(sequence, count, self.policy.least_chance) if count > 0 else NONE

    def observe_plain(self, num_sequences: int, started: float, steps: int = 1) -> None:
        """So many steps have sampled a token of each sequence, and verified no drafts."""
        seconds, self._seconds = self._seconds, 0.0
        if seconds == 0.0:  # no look at drafts in this step
            self._follows = False
        self.policy.add_step(num_sequences, num_sequences, num_sequences, self.clock() - started, seconds, steps)

    def observe(self, sampled: Sequence[Sequence[int]], rows: int, started: float) -> None:
        """A step with so many rows has sampled these tokens of each sequence."""
        num_tokens = sum(map(len, sampled))
        self.policy.add_step(len(sampled), rows, num_tokens, self.clock() - started, self._seconds)
        add = self.index.acceptance.add
        for drafts, tokens in zip(self._proposals or (), sampled, strict=True):
            for draft, evidence, token in zip(drafts.tokens, drafts.evidence, tokens, strict=False):
                add(evidence, draft == token)
                if draft != token:
                    break

    def finished(self, sequence: SequenceState) -> None:
        self.index.record(sequence)
