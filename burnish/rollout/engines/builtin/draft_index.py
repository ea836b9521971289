"""Drafts of a response's next tokens: what followed the same tokens in other responses to its prompt.

A draft is a guess that step_decode.py verifies. Everything here is bounded: stored tokens, indexed tokens, and the work
between two decode steps.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from burnish.rollout.engines.builtin.sampling import uniform
from burnish.rollout.engines.builtin.sequence import SequenceState

LONG = 4  # tokens of the longer of two contexts; the shorter one is the newest token alone
# A long context is one number, not a tuple: many small containers would trigger the garbage collector.
TOKEN_BITS = 20
CONTEXT_MASK = (1 << LONG * TOKEN_BITS) - 1
START = (1 << TOKEN_BITS) - 1  # stands for the tokens before a response
SAMPLE_SIZES = 6  # classes of sample sizes: 1, 2 to 3, 4 to 7, 8 to 15, 16 and more (and none)
MANY = 1 << SAMPLE_SIZES - 2
MEMORY = 0.995  # weight of older drafts of a class relative to the next
PRIOR, PRIOR_DRAFTS = 0.5, 8.0  # assumed acceptance, and how many drafts that assumption is worth
MIN_CHANCE = 0.05  # of being accepted; a chain of drafts ends before one with less
MEDIAN = 0.5  # the quantile to draft where sampling has no noise

RESPONSES_PER_PROMPT = 16  # kept for later rollouts
HISTORY_TOKENS = 1 << 20  # of all kept responses together, 4 bytes each
INDEXED_TOKENS = 1 << 18  # of all running prompts together
WINDOW = 64  # newest tokens that are indexed of a response when its index begins
TOKENS_PER_STEP = 4096  # of running sequences that are indexed between two steps
OTHERS_PER_SEQUENCE = 4  # tokens of earlier responses that are indexed between two steps, for each running sequence
NOISE_CHUNK = 64  # tokens of a response whose noise is computed at once


class Drafts(NamedTuple):
    """Guesses of a sequence's next tokens: lists of equal length."""

    tokens: list[int]
    evidence: list[int]  # the class of evidence for each
    chances: list[float]  # that it and all drafts before it are right


class Acceptance:
    """The share of drafts that were right, by the evidence for them: how long a context, how many samples, whether all
    of them agree."""

    def __init__(self) -> None:
        num_classes = 2 * SAMPLE_SIZES * 2
        self._right, self._all = [PRIOR * PRIOR_DRAFTS] * num_classes, [PRIOR_DRAFTS] * num_classes
        self.chances = [PRIOR] * num_classes

    def add(self, evidence: int, right: bool) -> None:
        self._right[evidence] = MEMORY * self._right[evidence] + right
        self._all[evidence] = MEMORY * self._all[evidence] + 1.0
        self.chances[evidence] = self._right[evidence] / self._all[evidence]


def evidence_of(followers: Sequence[int]) -> int:
    """The class of a draft from what followed a short context, sorted; that of a long context is 2 more."""
    count = len(followers)
    size = count.bit_length() if count < MANY else SAMPLE_SIZES - 1
    return 4 * size + (followers[0] == followers[-1])


@dataclass
class Source:
    """Tokens to index, and the first of them that is not indexed yet."""

    tokens: Sequence[int]
    next: int


class PromptIndex:
    """What followed each context in a prompt and in the responses to it, as sorted tokens."""

    def __init__(self, prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> None:
        self.after_long: dict[int, array[int]] = {}
        self.after_one: dict[int, array[int]] = {}
        self._running: dict[SequenceState, Source] = {}
        self._others = [Source(tokens, max(0, len(tokens) - WINDOW)) for tokens in (prompt, *responses)]
        self.num_tokens = 0  # that are indexed

    def follow(self, sequence: SequenceState) -> None:
        """Index the tokens of a running sequence as they come."""
        tokens = sequence.tokens
        if sequence not in self._running or self._running[sequence].tokens is not tokens:  # new, or restarted
            self._running[sequence] = Source(tokens, max(0, len(tokens) - WINDOW))

    def read_running(self, max_tokens: int) -> int:
        """Index up to so many tokens of running sequences; returns how many."""
        left = max_tokens
        for source in self._running.values():
            left -= self._read(source, left)
        return max_tokens - left

    def read_others(self, max_tokens: int) -> int:
        """Index up to so many tokens of earlier responses, newest first, and of the prompt; returns how many."""
        left = max_tokens
        while left and self._others:
            left -= self._read(self._others[-1], left)
            if left:
                self._others.pop()
        return max_tokens - left

    def _read(self, source: Source, max_tokens: int) -> int:
        tokens, first = source.tokens, source.next
        source.next = end = min(len(tokens), first + max_tokens)
        if first == end:
            return 0
        context = context_of(tokens[max(0, first - LONG) : first])
        for token in tokens[first:end]:
            for known, key in ((self.after_long, context), (self.after_one, context & START)):
                followers = known.get(key)
                if followers is None:
                    known[key] = array("i", (token,))
                else:
                    insort(followers, token)
            context = (context << TOKEN_BITS | token) & CONTEXT_MASK
        self.num_tokens += end - first
        return end - first

    def draft(
        self, tokens: Sequence[int], noise: Sequence[float], acceptance: Acceptance, least: float = MIN_CHANCE
    ) -> Drafts:
        """Guesses of what follows these tokens, one for each number in `noise`, until no context is known or a chance
        is below `least`.

        A sampled token is the quantile, at its keyed noise, of a distribution over token ids. So is its draft, of the
        empirical distribution of what followed the same context. Where the two distributions agree, the tokens agree,
        however flat both are; the most frequent token would be right only as often as it is sampled.
        """
        after_long, after_one, chances = self.after_long.get, self.after_one.get, acceptance.chances
        context, chance = context_of(tokens), 1.0
        drafts = Drafts([], [], [])
        for point in noise:
            followers, best, evidence = after_long(context), 0.0, 0
            if followers is not None:
                evidence = evidence_of(followers) + 2
                best = chances[evidence]
            samples = after_one(context & START)
            if samples is not None and chances[short := evidence_of(samples)] > best:
                followers, best, evidence = samples, chances[short], short
            chance *= best
            if followers is None or chance < least:
                break
            token = followers[int(point * len(followers))]
            drafts.tokens.append(token)
            drafts.evidence.append(evidence)
            drafts.chances.append(chance)
            context = (context << TOKEN_BITS | token) & CONTEXT_MASK
        return drafts


def context_of(tokens: Sequence[int]) -> int:
    """The last LONG tokens, behind as many START as are missing, as one number."""
    context = CONTEXT_MASK
    for token in tokens[-LONG:]:
        context = (context << TOKEN_BITS | token) & CONTEXT_MASK
    return context


class DraftIndex:
    """Drafts for running sequences from their own tokens, their group's responses and those of earlier rollouts."""

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.history: OrderedDict[bytes, deque[array[int]]] = OrderedDict()  # by ModelInput.key, longest unused first
        self.prompts: dict[bytes, PromptIndex] = {}  # of running sequences
        self._num_kept = 0  # tokens of the history
        self._sequences: list[SequenceState] | None = None
        self._noise: dict[SequenceState, tuple[int, list[float]]] = {}  # place of the first number, numbers

    def record(self, sequence: SequenceState) -> None:
        """Keep a finished response."""
        key = sequence.request.input.key
        kept = self.history.setdefault(key, deque())
        self.history.move_to_end(key)
        kept.append(array("i", sequence.tokens))
        self._num_kept += len(sequence.tokens)
        if len(kept) > RESPONSES_PER_PROMPT:
            self._num_kept -= len(kept.popleft())
        while self._num_kept > HISTORY_TOKENS:
            _, oldest = self.history.popitem(last=False)
            self._num_kept -= sum(map(len, oldest))

    def restart(self) -> None:
        """After steps that were not followed: begin with the newest tokens again."""
        self.prompts, self._sequences = {}, None

    def update(self, sequences: list[SequenceState]) -> bool:
        """Index new tokens of these sequences and their groups; whether all of running sequences are indexed."""
        if sequences is not self._sequences:
            self._follow(sequences)
        num_indexed = sum(prompt.num_tokens for prompt in self.prompts.values())
        budget = max(0, min(TOKENS_PER_STEP, INDEXED_TOKENS - num_indexed))
        running = self._read(PromptIndex.read_running, budget)
        self._read(PromptIndex.read_others, min(OTHERS_PER_SEQUENCE * len(sequences), budget - running))
        return running < TOKENS_PER_STEP

    def _read(self, read: Callable[[PromptIndex, int], int], budget: int) -> int:
        left = budget
        for prompt in self.prompts.values():
            left -= read(prompt, left)
        return budget - left

    def _follow(self, sequences: list[SequenceState]) -> None:
        """Index the prompts of these sequences, and no others."""
        keys = {sequence.request.input.key for sequence in sequences}
        self.prompts = {key: prompt for key, prompt in self.prompts.items() if key in keys}
        for sequence in sequences:
            input = sequence.request.input
            if input.key not in self.prompts:
                self.prompts[input.key] = PromptIndex(input.ids, self.history.get(input.key, ()))
            self.prompts[input.key].follow(sequence)
        running = set(sequences)
        self._noise = {sequence: chunk for sequence, chunk in self._noise.items() if sequence in running}
        self._sequences = sequences

    def draft(self, sequence: SequenceState, count: int, least: float = MIN_CHANCE) -> Drafts:
        """Up to `count` guesses of the sequence's next tokens, none with a chance below `least`."""
        greedy = sequence.request.sampling.greedy
        noise = [MEDIAN] * count if greedy else self._next_noise(sequence, count)
        return self.prompts[sequence.request.input.key].draft(sequence.tokens[-LONG:], noise, self.acceptance, least)

    def prepare(self, sequences: list[SequenceState], count: int) -> None:
        """Compute the noise of the next `count` tokens where it is not known, for all sequences at once."""
        short = [s for s in sequences if not s.request.sampling.greedy and not self._has_noise(s, count)]
        if short:
            first = torch.tensor([len(sequence.tokens) for sequence in short])
            seeds = torch.tensor([sequence.request.seed for sequence in short])
            places = first[:, None] + torch.arange(NOISE_CHUNK + count)
            numbers = uniform(seeds[:, None].expand_as(places), places).tolist()
            self._noise |= zip(short, zip(first.tolist(), numbers, strict=True), strict=True)

    def _has_noise(self, sequence: SequenceState, count: int) -> bool:
        first, numbers = self._noise.get(sequence, (0, ()))
        return first <= len(sequence.tokens) <= first + len(numbers) - count

    def _next_noise(self, sequence: SequenceState, count: int) -> list[float]:
        """The noise that will sample the sequence's next tokens."""
        if not self._has_noise(sequence, count):
            self.prepare([sequence], count)
        first, numbers = self._noise[sequence]
        index = len(sequence.tokens) - first
        return numbers[index : index + count]
