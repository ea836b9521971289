"""TrajectoryBuilder: a conversation as token ids that are only ever appended to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.trajectory import NOT_SAMPLED, Trajectory, Turn, experts_of

Observer = Literal["user", "tool", "system"]


class TrajectoryBuilder:
    """Appends sampled turns and observations to a prompt.

    What the model sampled is kept as it is and never rendered again, so the tokens that a later turn was given are
    exactly the tokens that are trained on.
    """

    def __init__(self, prompt: ModelInput) -> None:
        self.prompt = prompt
        self.input = prompt  # everything so far: what the next turn is sampled after
        self.turns: list[Turn] = []
        self._mask: list[bool] = []
        self._log_probs: list[float] = []
        self._versions: list[int] = []
        self._top_log_probs: list[list[tuple[int, float]]] | None = []
        self._stop_reason: str | int | None = None
        self._experts: Tensor | None = None  # of the tokens so far, but the last ones

    def copy(self) -> TrajectoryBuilder:
        """The same tokens and turns, to continue otherwise."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, list(value))
        return other

    def __len__(self) -> int:
        """Tokens after the prompt."""
        return len(self._mask)

    @property
    def num_sampled_turns(self) -> int:
        return sum(turn.role == "assistant" for turn in self.turns)

    def add_sampled(self, completion: Completion, tool_calls: Sequence[dict[str, Any]] = ()) -> None:
        """A turn of the policy."""
        start, length = len(self), len(completion.ids)
        self._mask += [True] * length
        self._log_probs += completion.log_probs
        self._versions += completion.versions
        self._stop_reason = completion.stop_reason
        self._add_experts(completion)
        if self._top_log_probs is not None:
            top = completion.top_log_probs
            self._top_log_probs = None if top is None and length else [*self._top_log_probs, *(top or [])]
        self.input = self.input.extend(tuple(completion.ids))
        self.turns.append(
            Turn(start, start + length, finish_reason=completion.finish_reason, tool_calls=tuple(tool_calls))
        )

    def _add_experts(self, completion: Completion) -> None:
        """What is known of a token stays: a later turn may have prefilled it again, after it was sampled."""
        found = completion.routed_experts
        if found is None:
            return
        known = found[:0] if self._experts is None else self._experts
        self._experts = torch.cat([known, found[len(known) : len(self.input) + len(completion.ids)]])

    def add_observation(
        self, ids: Sequence[int], role: Observer, *, latency: float = 0.0, media: tuple[Media, ...] = ()
    ) -> None:
        """Tokens that a tool, a user or the environment gave, with those of the template around them."""
        start, length = len(self), len(ids)
        self._mask += [False] * length
        self._log_probs += [0.0] * length
        self._versions += [NOT_SAMPLED] * length
        if self._top_log_probs is not None:
            self._top_log_probs += [[] for _ in range(length)]
        self.input = self.input.extend(tuple(ids), media)
        self.turns.append(Turn(start, start + length, role, latency=latency))

    def add_reward(self, reward: float) -> None:
        """A reward for the newest turn that was sampled: it goes to that turn's last token."""
        for number in reversed(range(len(self.turns))):
            turn = self.turns[number]
            if turn.role == "assistant":
                self.turns[number] = replace(turn, reward=(turn.reward or 0.0) + reward)
                return
        raise ValueError("a reward needs a sampled turn")

    def build(self, finish_reason: FinishReason, info: dict[str, Any] | None = None, **fields: Any) -> Trajectory:
        """The trajectory, with further `fields` of it."""
        num_prompt = len(self.prompt)
        return Trajectory(
            self.prompt,
            list(self.input.ids[num_prompt:]),
            self._mask,
            self._log_probs,
            self._versions,
            self.turns,
            finish_reason,
            self._stop_reason,
            self._top_log_probs if self._top_log_probs else None,
            self.input.media[len(self.prompt.media) :],
            experts_of(self._experts, len(self.input)),
            info=info or {},
            **fields,
        )
