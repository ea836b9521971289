"""Between score and credit: fallback -> overlong penalty -> stop_properly -> scale -> normalise -> clip.

The fallback score is given in room 3. What is done here goes into columns of its own; `token_level_scores` stay what
the reward gave. Validation scores are never shaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.algos.shaping import SCORE_NORMALIZERS, BatchMoments, RunningMoments, overlong_penalty, stop_properly
from burnish.batch import Batch, Ragged
from burnish.log.metrics import row_sums

if TYPE_CHECKING:
    from burnish.config import TrainConfig


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
    """Shapes the scores of a step. Its state is that of a running normaliser."""

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

    @staticmethod
    def of(cfg: TrainConfig) -> Shaper:
        reward, buffer = cfg.reward, cfg.reward_model.overlong_buffer
        return Shaper(
            Overlong(buffer.max_resp_len or cfg.data.max_response_length, buffer.len, buffer.penalty_factor, buffer.log)
            if buffer.enable
            else None,
            reward.stop_properly_penalty,
            reward.scale,
            SCORE_NORMALIZERS[reward.normalize].load()() if reward.normalize else None,
            tuple(reward.clip_range) if reward.clip_range else None,
        )

    @property
    def changes(self) -> bool:
        """Is there anything to do?"""
        things = (self.overlong, self.stop_coefficient, self.normalizer, self.clip)
        return self.scale != 1 or any(thing is not None for thing in things)

    def rows(self, scores: Tensor, lengths: Tensor, finish_reasons: Sequence[str]) -> Tensor:
        """What can be said of each response alone: penalties and scale. [rows]"""
        if self.overlong is not None:
            scores = scores + self.overlong.penalty(lengths)
        if self.stop_coefficient is not None:
            truncated = torch.tensor([reason == "length" for reason in finish_reasons])
            scores = stop_properly(scores, truncated, self.stop_coefficient)
        return scores * self.scale

    def shape(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Adds shaped_scores, and those of greedy responses where they are the baseline, if there is anything to do."""
        if not self.changes:
            return batch, {}
        raw, columns, metrics = batch["token_level_scores"], {}, {}
        shaped = self.rows(row_sums(raw).float(), raw.lengths, batch["finish_reason"])
        greedy = None
        if "greedy_scores" in batch:
            greedy = self.rows(batch["greedy_scores"], batch["greedy_lengths"], batch["greedy_finish_reason"])
        if self.normalizer is not None:
            moments = self.normalizer.of(shaped)
            metrics |= {"reward/mean": moments.mean, "reward/std": moments.std}
            shaped = moments.standardise(shaped)
            greedy = None if greedy is None else moments.standardise(greedy)
        columns["shaped_scores"] = on_last_token(raw, self._bounded(shaped))
        if greedy is not None:
            columns["shaped_greedy_scores"] = self._bounded(greedy)
        if self.overlong is not None and self.overlong.log:
            columns["overlong_reward"] = penalty = self.overlong.penalty(raw.lengths)
            metrics["reward/overlong_reward"] = float(penalty.mean())
            metrics["reward/overlong"] = float((penalty < 0).float().mean())
        return batch.add(**columns), metrics

    def _bounded(self, scores: Tensor) -> Tensor:
        return scores if self.clip is None else scores.clamp(*self.clip)

    def state_dict(self) -> dict[str, float]:
        return {} if self.normalizer is None else self.normalizer.state_dict()

    def load_state_dict(self, state: dict[str, float]) -> None:
        """A checkpoint without such a state was made without a running normaliser, which then starts here."""
        if self.normalizer is not None and state:
            self.normalizer.load_state_dict(state)


def on_last_token(raw: Ragged, scores: Tensor) -> Ragged:
    """Rows that sum to `scores`: whatever was added or taken stands on the last token."""
    flat, has_tokens = raw.flat.clone(), raw.lengths > 0
    last = (raw.lengths.cumsum(0) - 1)[has_tokens]
    before = row_sums(raw).float()[has_tokens] - flat[last]
    flat[last] = scores[has_tokens] - before
    return Ragged.like(flat, raw)
