"""SequenceState: one response being generated. PromptState: a prompt being prefilled, shared by its sequences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Request
from burnish.rollout.engines.builtin.penalties import PenaltyState
from burnish.rollout.stop import Finish

NO_SLOT = -1


@dataclass(eq=False)
class SequenceState:
    request: Request
    future: Future[Completion]
    penalties: PenaltyState | None = None  # None where sampling does not depend on earlier tokens
    block_table: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    slot: int = NO_SLOT  # its index in the device's batch (graph_decode.py)
    stale: bool = False  # part of its KV comes from older weights
    offset: int = 0  # position of a new token minus its index: media may take fewer positions than tokens
    session: str | None = field(init=False)
    received: float = field(default_factory=time.perf_counter)
    experts: Tensor | None = None  # that its tokens were sent to, where that is recorded
    queued: float | None = None  # seconds until it was started; None while it waits for the first time

    def __post_init__(self) -> None:
        self.session = self.request.session

    @property
    def num_cached(self) -> int:
        """Tokens whose keys and values are in the cache: the prompt and all new tokens but the last."""
        return len(self.request.input) + max(0, len(self.tokens) - 1)

    @cached_property
    def needs_slow_sampling(self) -> bool:
        """Whether sampling needs more than a temperature."""
        sampling = self.request.sampling
        return sampling.restricts or sampling.looks_back or bool(sampling.logprobs)

    @cached_property
    def has_stop_conditions(self) -> bool:
        """Whether anything besides EOS and the length can end it."""
        return bool(self.request.sampling.stop or self.request.sampling.stop_token_ids)

    @cached_property
    def needs_look(self) -> bool:
        """Whether the host has something to check after every token."""
        return self.has_stop_conditions or self.request.watch is not None

    @cached_property
    def needs_host_readback(self) -> bool:
        """Whether the host must process its tokens before the device generates more: stop strings and penalties."""
        return bool(self.request.sampling.stop or self.request.sampling.looks_back)

    @cached_property
    def max_tokens(self) -> int:
        return self.request.sampling.max_tokens

    def append(self, token: int, log_prob: float, version: int) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.versions.append(version)
        if self.penalties is not None:
            self.penalties.add(token)

    def start(self) -> None:
        """It leaves the queue."""
        if self.queued is None:  # else it was preempted
            self.queued = time.perf_counter() - self.received

    def restart(self) -> None:
        """Discard all tokens after a preemption; the same seed generates them again."""
        self.block_table, self.tokens, self.log_probs, self.versions, self.top = [], [], [], [], []
        self.slot, self.stale = NO_SLOT, False
        if self.penalties is not None:
            self.penalties.clear()

    def complete(self, end: Finish) -> None:
        top = None if self.request.sampling.logprobs is None else self.top
        self.future.set_result(
            Completion(
                self.tokens,
                self.log_probs,
                self.versions,
                end.reason,
                stop_reason=end.stop,
                top_log_probs=top,
                routed_experts=self.experts,
                queued=self.queued or 0.0,
            )
        )


@dataclass(eq=False)
class PromptState:
    """A prompt in the cache. Sequences share its full blocks and copy its last, partial one."""

    input: ModelInput
    blocks: list[int]
    num_scheduled: int = 0  # tokens in the cache, including those of the coming prefill pass
    logits: Tensor | None = None  # [V] of the first new token, after the last pass

    @property
    def first_logits(self) -> Tensor:
        if self.logits is None:
            raise RuntimeError("the prompt is not prefilled yet")
        return self.logits

    @property
    def num_remaining(self) -> int:
        """Tokens that are not scheduled yet."""
        return len(self.input) - self.num_scheduled


def split_chunks(
    chunks: Sequence[tuple[PromptState, int]], max_tokens: int | None
) -> Iterator[list[tuple[PromptState, int]]]:
    """Prefill chunks in order, grouped up to `max_tokens` tokens per forward pass; a longer chunk gets its own pass."""
    batch: list[tuple[PromptState, int]] = []
    for chunk in chunks:
        if batch and max_tokens is not None and sum(count for _, count in batch) + chunk[1] > max_tokens:
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch
