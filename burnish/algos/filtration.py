"""Policy filtration (PF-PPO, arXiv 2409.06957): resample the step's responses by their scores.

A reweight method maps the scores of all rows and an exponent to unnormalized sampling probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.registry import Registry

REWEIGHT_METHODS = Registry("reweight method", key="algorithm.pf_ppo.reweight_method")

EPS = 1e-8  # so that a batch of zero scores can be sampled


@REWEIGHT_METHODS.register("pow")
def power(scores: Tensor, weight_pow: float) -> Tensor:
    """|R| to the power weight_pow."""
    return scores.abs() ** weight_pow


@REWEIGHT_METHODS.register("max_min")
def max_min(scores: Tensor, weight_pow: float) -> Tensor:
    """Only the batch's best and worst scores."""
    return ((scores == scores.max()) | (scores == scores.min())).to(scores)


@REWEIGHT_METHODS.register("max_random")
def max_random(scores: Tensor, weight_pow: float) -> Tensor:
    """0.4 for the batch's best score, 0.1 for the others."""
    return torch.where(scores == scores.max(), 0.4, 0.1).to(scores)


def resample(scores: Tensor, method: str, weight_pow: float, generator: torch.Generator) -> Tensor:
    """Draw as many rows as there are, with replacement; returns how often each was drawn, float [rows]."""
    if not len(scores):
        return scores.new_zeros(0)
    chances = REWEIGHT_METHODS[method].load()(scores.double().cpu(), weight_pow) + EPS
    drawn = torch.multinomial(chances, len(scores), replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=len(scores)).to(torch.float32)
