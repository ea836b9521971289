"""Shape scores, one per row, before advantages are computed: length penalties and normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.registry import Registry

TINY = 1e-8  # a smaller standard deviation is rounding error

SCORE_NORMALIZERS = Registry("score normalizer", key="reward.normalize")


def overlong_penalty(lengths: Tensor, max_length: int, buffer: int, factor: float) -> Tensor:
    """0 up to max_length - buffer tokens, then linear to -factor at max_length (DAPO, 2503.14476).

    lengths: [rows]
    """
    excess = (lengths - (max_length - buffer)).to(torch.float32)
    return (-excess / buffer * factor).clamp(max=0)


def stop_properly(scores: Tensor, truncated: Tensor, coefficient: float) -> Tensor:
    """Multiply scores of truncated responses by the coefficient; a negative coefficient replaces them.

    scores: [rows]; truncated: bool [rows]
    """
    reduced = scores * coefficient if coefficient >= 0 else torch.full_like(scores, coefficient)
    return torch.where(truncated, reduced, scores)


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of scores."""

    mean: float
    std: float

    def standardize(self, scores: Tensor) -> Tensor:
        """(score - mean) / std; if all scores are equal, only centered."""
        centered = scores - self.mean
        return centered / self.std if self.std > TINY else centered


@SCORE_NORMALIZERS.register("batch")
class BatchMoments:
    """Moments of the current step's scores."""

    def of(self, scores: Tensor) -> Moments:
        values = scores.double()
        return Moments(float(values.mean()), float(values.std()) if len(values) > 1 else 0.0)

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Does nothing: there is no state."""


@SCORE_NORMALIZERS.register("running")
class RunningMoments:
    """Moments of all scores so far, including this step's (parallel variance of Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0.0
        self.mean = 0.0
        self.squares = 0.0  # sum of (score - mean)^2

    def of(self, scores: Tensor) -> Moments:
        values = scores.double()
        count, mean = float(len(values)), float(values.mean())
        squares = float((values - mean).square().sum())
        total, step = self.count + count, mean - self.mean
        self.squares += squares + step * step * self.count * count / total
        self.mean += step * count / total
        self.count = total
        return Moments(self.mean, math.sqrt(self.squares / (total - 1)) if total > 1 else 0.0)

    def state_dict(self) -> dict[str, float]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
