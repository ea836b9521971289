"""What the scheduler moves about: a Row is one response in the making, a Prefix the prompt that several rows share."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from burnish.rollout.engine import Completion, FinishReason, Request


@dataclass(eq=False)
class Row:
    request: Request
    future: Future[Completion]
    table: list[int] = field(default_factory=list)  # its blocks, in order
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: the prompt and all new tokens but the last."""
        return len(self.request.ids) + max(0, len(self.tokens) - 1)

    def append(self, token: int, log_prob: float, version: int) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.versions.append(version)

    def finished(self, eos_ids: frozenset[int]) -> FinishReason | None:
        if not self.request.sampling.ignore_eos and self.tokens[-1] in eos_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.request.sampling.max_tokens else None

    def restart(self) -> None:
        """Forget everything made so far: the same noise will make it again."""
        self.table, self.tokens, self.log_probs, self.versions = [], [], [], []

    def complete(self, reason: FinishReason) -> None:
        self.future.set_result(Completion(self.tokens, self.log_probs, self.versions, reason))


@dataclass(eq=False)
class Prefix:
    """A prompt that has been prefilled: its full blocks are shared, its last partial block is copied by each row."""

    ids: tuple[int, ...]
    blocks: list[int]
    logits: Tensor | None = None  # of the first new token, [V]
