"""A custom advantage estimator: the score minus the group's median.

burnish train ... algorithm.adv_estimator=examples/my_estimator.py:median_baseline
"""

from __future__ import annotations

import torch

from burnish.algos.advantages import Credit, Estimate


def median_baseline(credit: Credit) -> Estimate:
    """A_i = R_i - median of the group's scores, on every response token."""
    scores, groups = credit.scores(), credit.require("groups")
    advantages = torch.zeros_like(scores)
    for group in groups.unique():
        rows = groups == group
        advantages[rows] = scores[rows] - scores[rows].median()
    return credit.on_tokens(advantages)


# What the loop must provide: "values" adds a critic, "greedy" a greedy response per prompt.
median_baseline.needs = {"groups"}
