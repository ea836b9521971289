"""What the scheduler moves about: a Row is one response in the making, a Prefix the prompt that several rows share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from burnish.rollout.engine import Completion, Request
from burnish.rollout.engines.builtin.past import Past
from burnish.rollout.stop import Finish


@dataclass(eq=False)
class Row:
    request: Request
    future: Future[Completion]
    past: Past | None = None  # where it matters for what comes next
    table: list[int] = field(default_factory=list)  # its blocks, in order
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: the prompt and all new tokens but the last."""
        return len(self.request.ids) + max(0, len(self.tokens) - 1)

    @cached_property
    def is_slow(self) -> bool:
        """Does drawing its tokens need more than a temperature?"""
        sampling = self.request.sampling
        return sampling.restricts or sampling.looks_back or bool(sampling.logprobs)

    @cached_property
    def is_watched(self) -> bool:
        """May other tokens than EOS end it?"""
        return bool(self.request.sampling.stop or self.request.sampling.stop_token_ids)

    @cached_property
    def is_read_closely(self) -> bool:
        """Does the next token depend on what the host makes of the last ones: on their text, or on all of them?"""
        return bool(self.request.sampling.stop or self.request.sampling.looks_back)

    @cached_property
    def most(self) -> int:
        """Tokens of the longest response."""
        return self.request.sampling.max_tokens

    def append(self, token: int, log_prob: float, version: int) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.versions.append(version)
        if self.past is not None:
            self.past.add(token)

    def restart(self) -> None:
        """Forget everything made so far: the same noise will make it again."""
        self.table, self.tokens, self.log_probs, self.versions, self.top = [], [], [], [], []
        if self.past is not None:
            self.past.clear()

    def complete(self, end: Finish) -> None:
        top = None if self.request.sampling.logprobs is None else self.top
        self.future.set_result(
            Completion(self.tokens, self.log_probs, self.versions, end.reason, stop_reason=end.stop, top_log_probs=top)
        )


@dataclass(eq=False)
class Prefix:
    """A prompt that is prefilled: its full blocks are shared, its last partial block is copied by each row."""

    ids: tuple[int, ...]
    blocks: list[int]
    planned: int = 0  # tokens in the cache, those of the coming pass included
    logits: Tensor | None = None  # of the first new token, [V], once all are

    @property
    def left(self) -> int:
        """Tokens that no pass has taken yet."""
        return len(self.ids) - self.planned


def batches(pieces: Sequence[tuple[Prefix, int]], most: int | None) -> Iterator[list[tuple[Prefix, int]]]:
    """Parts of prompts in their order, together while they have no more than so many tokens; a longer one alone."""
    batch: list[tuple[Prefix, int]] = []
    for piece in pieces:
        if batch and most is not None and sum(count for _, count in batch) + piece[1] > most:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch
