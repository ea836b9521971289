"""Trajectory: the unit that rollout produces. Everything after a prompt, token by token, with who wrote each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.batch import Batch, Column, Ragged
from burnish.errors import UserError
from burnish.models.model_input import Media, ModelInput
from burnish.models.routing import missing
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.stop import Decode, visible_text

NOT_SAMPLED = -1  # the weight version of tokens that the environment gave


@dataclass(frozen=True)
class Turn:
    """A span of a trajectory with one author."""

    start: int
    end: int  # exclusive
    role: Literal["assistant", "user", "tool", "system"] = "assistant"
    reward: float | None = None  # of this turn alone; it goes to the turn's last token
    finish_reason: FinishReason | None = None  # of a sampled turn
    tool_calls: tuple[dict[str, Any], ...] = ()
    latency: float = 0.0  # seconds that a tool or the environment took


@dataclass(frozen=True)
class Trajectory:
    """One row of training data. Single-turn rollouts have one sampled turn."""

    prompt: ModelInput
    ids: list[int]  # everything after the prompt, in order
    mask: list[bool]  # True where the policy sampled the token: only those are trained on
    log_probs: list[float]  # of sampled tokens; 0 elsewhere
    versions: list[int]  # weights that sampled each token; NOT_SAMPLED elsewhere
    turns: list[Turn]
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or stop token that ended the last sampled turn
    top_log_probs: list[list[tuple[int, float]]] | None = None  # per token the likeliest (id, log-prob), best first
    media: tuple[Media, ...] = ()  # images or frames that tools and environments returned
    routed_experts: Tensor | None = None  # of all tokens, [prompt + ids, mixtures, k], for router replay
    score: float | None = None  # of an agent that scores its own conversations; the reward function is not called
    extras: dict[str, Any] = field(default_factory=dict)  # metrics beside its score, or extra_info for a reward
    problem: str | None = None  # why the conversation failed; reward.on_error decides on its score
    futures: tuple[Trajectory, ...] = ()  # simulated continuations: not trained on, the score is their mean
    info: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def single_turn(prompt: ModelInput, completion: Completion) -> Trajectory:
        """A prompt and its one response."""
        length = len(completion.ids)
        return Trajectory(
            prompt,
            completion.ids,
            [True] * length,
            completion.log_probs,
            completion.versions,
            [Turn(0, length, finish_reason=completion.finish_reason)],
            completion.finish_reason,
            completion.stop_reason,
            completion.top_log_probs,
            routed_experts=experts_of(completion.routed_experts, len(prompt) + length),
        )

    @property
    def all_media(self) -> tuple[Media, ...]:
        """Those of the prompt and of what came after it; offsets count from the start of the prompt."""
        return self.prompt.media + self.media

    @property
    def is_single_turn(self) -> bool:
        return len(self.turns) == 1 and self.turns[0].reward is None and not self.futures

    def text(self, decode: Decode) -> str:
        """Everything after the prompt, without the stop token or stop string that ended it."""
        return visible_text(self.ids, self.stop_reason, decode)


def response_columns(trajectories: Sequence[Trajectory]) -> dict[str, Column]:
    """responses, response_mask, rollout_log_probs, weight_version, finish_reason; one row per trajectory.

    routed_experts is added where the engine recorded them.

    generation_time is when an episode began and ended in seconds since 1970, or None; segments, what it did when
    (episode.py). top_log_probs is added where
    the sampling asked for them; turns, and what is known about a conversation, where a trajectory has more than one
    turn. media is added where a trajectory has images or videos.
    """
    responses = Ragged.of([t.ids for t in trajectories], torch.int64)
    mask = Ragged.like(torch.ones(len(responses.flat)), responses)
    columns: dict[str, Column] = {}
    if trajectories and all(t.top_log_probs is not None for t in trajectories):
        columns["top_log_probs"] = [t.top_log_probs for t in trajectories]
    if any(t.routed_experts is not None for t in trajectories):
        columns["routed_experts"] = _expert_column(trajectories)
    if any(t.all_media for t in trajectories):
        columns["media"] = [t.all_media for t in trajectories]
    if not all(t.is_single_turn for t in trajectories):
        columns["turns"] = [t.turns for t in trajectories]
        columns["conversation"] = [t.info for t in trajectories]
        mask = Ragged.of([[float(sampled) for sampled in t.mask] for t in trajectories], torch.float32)
    return columns | {
        "responses": responses,
        "response_mask": mask,
        "rollout_log_probs": Ragged.of([t.log_probs for t in trajectories], torch.float32),
        "weight_version": Ragged.of([t.versions for t in trajectories], torch.int64),
        "finish_reason": [t.finish_reason for t in trajectories],
        "generation_time": [t.info.get("generation_time") for t in trajectories],
        "segments": [t.info.get("segments", []) for t in trajectories],
    }


def experts_of(recorded: Tensor | None, num_tokens: int) -> Tensor | None:
    """Choices of so many tokens, of which the first were recorded: the last sampled token went through no router."""
    if recorded is None:
        return None
    recorded = recorded[:num_tokens]
    return F.pad(recorded, (0, 0, 0, 0, 0, num_tokens - len(recorded)), value=missing(recorded.dtype))


def _expert_column(trajectories: Sequence[Trajectory]) -> Ragged:
    """Along prompt and response. Trajectories without a sampled token need no recorded choices."""
    known = next(t.routed_experts for t in trajectories if t.routed_experts is not None)
    rows = []
    for t in trajectories:
        if t.routed_experts is None and any(t.mask):
            raise UserError(
                "a conversation came without the engine's choices of experts: its agent makes trajectories of its own",
                key="actor_rollout_ref.rollout.enable_rollout_routing_replay",
                value=True,
                hint="use an agent that builds its trajectories from the engine's completions",
            )
        num_tokens = len(t.prompt) + len(t.ids)
        rows.append(experts_of(known[:0], num_tokens) if t.routed_experts is None else t.routed_experts)
    return Ragged.of(rows)


def is_sampled(batch: Batch) -> Tensor:
    """Which response tokens the policy sampled, flat bool."""
    return batch["response_mask"].flat.bool()
