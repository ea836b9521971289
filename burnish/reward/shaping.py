"""Reward shaping, between score and credit: overlong penalty -> stop_properly -> scale -> normalize -> clip.

Shaped scores go to columns of their own; `token_level_scores` stay what the reward returned. Validation scores are
never shaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algos.shaping import BatchMoments, RunningMoments, overlong_penalty, stop_properly
from burnish.batch import Batch, Ragged
from burnish.reward.trajectories import last_sampled_tokens


@dataclass(frozen=True)
class Overlong:
    """DAPO's penalty for responses near the limit."""

    max_length: int
    buffer: int
    factor: float
    log: bool

    def penalty(self, lengths: Tensor) -> Tensor:
        return overlong_penalty(lengths, self.max_length, self.buffer, self.factor)


class Shaper:
    """Shapes the scores of a step. Its only state is that of a running normalizer."""

    def __init__(
        self,
        overlong: Overlong | None = None,
        stop_coefficient: float | None = None,
        scale: float = 1.0,
        normalizer: BatchMoments | RunningMoments | None = None,
        clip: tuple[float, float] | None = None,
    ) -> None:
        self.overlong = overlong
        self.stop_coefficient = stop_coefficient
        self.scale = scale
        self.normalizer = normalizer
        self.clip = clip

    @property
    def changes(self) -> bool:
        """Whether any shaping is configured."""
        things = (self.overlong, self.stop_coefficient, self.normalizer, self.clip)
        return self.scale != 1 or any(thing is not None for thing in things)

    def shape_rows(self, scores: Tensor, lengths: Tensor, finish_reasons: Sequence[str]) -> Tensor:
        """The part that depends on each response alone: penalties and scale. [rows]"""
        if self.overlong is not None:
            scores = scores + self.overlong.penalty(lengths)
        if self.stop_coefficient is not None:
            truncated = torch.tensor([reason == "length" for reason in finish_reasons])
            scores = stop_properly(scores, truncated, self.stop_coefficient)
        return scores * self.scale

    def shape(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Add shaped_scores, and shaped_greedy_scores where greedy responses are the baseline."""
        if not self.changes:
            return batch, {}
        raw, columns, metrics = batch["token_level_scores"], {}, {}
        shaped = self.shape_rows(raw.sums().float(), raw.lengths, batch["finish_reason"])
        greedy = None
        if "greedy_scores" in batch:
            greedy = self.shape_rows(batch["greedy_scores"], batch["greedy_lengths"], batch["greedy_finish_reason"])
        if self.normalizer is not None:
            moments = self.normalizer.of(shaped)
            metrics |= {"reward/mean": moments.mean, "reward/std": moments.std}
            shaped = moments.standardize(shaped)
            greedy = None if greedy is None else moments.standardize(greedy)
        columns["shaped_scores"] = on_last_token(batch, raw, self._clipped(shaped))
        if greedy is not None:
            columns["shaped_greedy_scores"] = self._clipped(greedy)
        if self.overlong is not None and self.overlong.log:
            columns["overlong_reward"] = penalty = self.overlong.penalty(raw.lengths)
            metrics["reward/overlong_reward"] = float(penalty.mean())
            metrics["reward/overlong"] = float((penalty < 0).float().mean())
        return batch.add(**columns), metrics

    def _clipped(self, scores: Tensor) -> Tensor:
        return scores if self.clip is None else scores.clamp(*self.clip)

    def state_dict(self) -> dict[str, float]:
        return {} if self.normalizer is None else self.normalizer.state_dict()

    def load_state_dict(self, state: dict[str, float]) -> None:
        """A checkpoint of a run without a running normalizer has no such state: the normalizer starts fresh."""
        if self.normalizer is not None and state:
            self.normalizer.load_state_dict(state)


def on_last_token(batch: Batch, raw: Ragged, scores: Tensor) -> Ragged:
    """Token scores whose rows sum to `scores`: the difference goes to the last sampled token."""
    flat = raw.flat.clone()
    last, has_tokens = last_sampled_tokens(batch)
    others = raw.sums().float()[has_tokens] - flat[last]
    flat[last] = scores[has_tokens] - others
    return Ragged.like(flat, raw)
