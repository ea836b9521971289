"""Scores before credit is given, one per row: penalties for length, and normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.registry import Registry

TINY = 1e-8  # a standard deviation below this is no spread, but rounding

SCORE_NORMALIZERS = Registry("score normaliser", key="reward.normalize")


def overlong_penalty(lengths: Tensor, max_length: int, buffer: int, factor: float) -> Tensor:
    """0 up to max_length - buffer tokens, then falling in proportion to -factor at max_length (DAPO, 2503.14476).

    lengths: [rows]
    """
    beyond = (lengths - (max_length - buffer)).to(torch.float32)
    return (-beyond / buffer * factor).clamp(max=0)


def stop_properly(scores: Tensor, truncated: Tensor, coefficient: float) -> Tensor:
    """Responses that hit the length limit keep this share of their score; a negative coefficient is their score.

    scores: [rows]; truncated: bool [rows]
    """
    cut = scores * coefficient if coefficient >= 0 else torch.full_like(scores, coefficient)
    return torch.where(truncated, cut, scores)


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of scores."""

    mean: float
    std: float

    def standardise(self, scores: Tensor) -> Tensor:
        """(score - mean) / std; scores that do not differ are only centred."""
        centred = scores - self.mean
        return centred / self.std if self.std > TINY else centred


@SCORE_NORMALIZERS.register("batch")
class BatchMoments:
    """Those of the step's own scores."""

    def of(self, scores: Tensor) -> Moments:
        values = scores.double()
        return Moments(float(values.mean()), float(values.std()) if len(values) > 1 else 0.0)

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Every step starts anew."""


@SCORE_NORMALIZERS.register("running")
class RunningMoments:
    """Those of all scores so far, this step's included (Chan et al. 1979: sums of squares of two parts, joined)."""

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
