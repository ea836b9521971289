"""An advantage estimator of your own: the score minus the median of the group.

burnish train ... algorithm.adv_estimator=examples/my_estimator.py:median_baseline
"""

from __future__ import annotations

import torch

from burnish.algos.advantages import Credit, Estimate


def median_baseline(credit: Credit) -> Estimate:
    """A_i = R_i - median of the scores of its group, on every token of the response."""
    scores, groups = credit.scores(), credit.require("groups")
    advantages = torch.zeros_like(scores)
    for group in groups.unique():
        rows = groups == group
        advantages[rows] = scores[rows] - scores[rows].median()
    return credit.on_tokens(advantages)


median_baseline.needs = {"groups"}  # the loop reads this: values asks for a critic, greedy for a greedy response
