"""Bias and variance of every algorithm.turn_credit, exact, on the games of tests/algos/test_turns.py.

    python bench/turn_credit.py

In a game of three states the policy stops or goes on, and every choice earns something. All groups of four
conversations are enumerated, so that nothing is sampled: bias and standard deviation are those of the gradient of one
group, relative to the length of the exact gradient, on average over three policies.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path

import tables
import torch
from torch import Tensor

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.turns import TURN_CREDITS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.algos.test_turns import (
    GAIN,
    SCORE,
    STATES,
    THETAS,
    Unwhitened,
    conversations,
    exact_gradient,
    grad_log_prob,
    layout,
)

GROUP = 4
COLUMNS = {
    "turn_credit": "`{name}`",
    "estimator": "`{estimator}`",
    "bias": "{bias:.2f}",
    "std of a group's gradient": "{std:.2f}",
    "angle to the exact gradient": "{angle:.0f}°",
}
# The estimator that each is measured with: one whose baseline leaves the row itself out where there is a choice.
ESTIMATORS = {"trajectory": "rloo", "outcome": "rloo", "gae": "gae"}


def true_values(theta: Tensor) -> list[float]:
    """Of each state."""
    values = [0.0] * (STATES + 1)
    for state in reversed(range(STATES)):
        stop = float(torch.sigmoid(-theta[state])) if state < STATES - 1 else 1.0
        values[state] = stop * SCORE[state] + (1 - stop) * (GAIN[state] + values[state + 1])
    return values


def gradient(theta: Tensor, name: str, group: list[list[int]]) -> Tensor:
    """What one group contributes: the mean over its conversations of sum_k A_k grad log pi(a_k)."""
    credit, turns = layout(group)
    if "values" in TURN_CREDITS[name].needs:
        values = true_values(theta)
        of_token = [values[int(turns.states[turn])] if turn >= 0 else 0.0 for turn in turns.of_token.tolist()]
        columns = (credit.token_level_rewards, credit.response_mask, credit.lengths)
        credit = Unwhitened(*columns, values=torch.tensor(of_token, dtype=torch.float64), lam=0.95)
    estimator = ADVANTAGES[ESTIMATORS.get(name, "grpo")].load()
    advantages, _ = TURN_CREDITS[name].load()(credit, turns, estimator)
    per_turn = advantages[credit.response_mask.bool()].reshape(-1, 2)[:, 0]
    gradients = [grad_log_prob(theta, state, action) for actions in group for state, action in enumerate(actions)]
    return (per_turn[:, None] * torch.stack(gradients)).sum(0) / len(group)


def measure(name: str) -> dict[str, float | str]:
    biases, stds, angles = [], [], []
    for theta in THETAS:
        exact = exact_gradient(theta)
        mean, square = torch.zeros_like(exact), 0.0
        for group in itertools.product(list(conversations(theta)), repeat=GROUP):
            probability = math.prod(p for p, _ in group)
            one = gradient(theta, name, [actions for _, actions in group])
            mean += probability * one
            square += probability * float(one @ one)
        size = float(exact.norm())
        biases.append(float((mean - exact).norm()) / size)
        stds.append(math.sqrt(max(0.0, square - float(mean @ mean))) / size)
        cosine = float(torch.nn.functional.cosine_similarity(mean, exact, dim=0))
        angles.append(math.degrees(math.acos(max(-1.0, min(1.0, cosine)))))
    each = {"bias": biases, "std": stds, "angle": angles}
    return {
        "name": name,
        "estimator": ESTIMATORS.get(name, "grpo"),
        **{key: sum(values) / len(values) for key, values in each.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables.add_option(parser)
    args = parser.parse_args()
    rows = [measure(name) for name in TURN_CREDITS.names()]
    for row in rows:
        print(" | ".join(text.format(**row) for text in COLUMNS.values()))
    tables.save(args, "turn_credit", COLUMNS, rows)


if __name__ == "__main__":
    main()
