"""Credit of turns: every estimator's expected gradient on small games, against the exact gradient.

A game ends when the policy says so: in each state it stops or goes on, and every choice earns something. All pairs of
conversations are enumerated, so expectations are exact.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES, Credit
from burnish.algos.turns import TURN_CREDITS, Turns

STATES = 3  # the last one always ends
GAIN = [0.7, 0.4, 0.0]  # of going on in a state
SCORE = [0.2, 1.0, -0.5]  # of stopping there


class Unwhitened(Credit):
    """Whitening over one conversation would hide the scale."""

    def whiten(self, x):
        return x


def conversations(theta):
    """Every conversation as (probability, actions): stop (0) or go on (1) in states 0, 1, ..."""
    for turns in range(1, STATES + 1):
        actions = [1] * (turns - 1) + [0]
        probability = math.prod(
            float(torch.sigmoid(theta[state])) if action else float(torch.sigmoid(-theta[state]))
            for state, action in enumerate(actions[: STATES - 1])
        )
        yield probability, actions


def reward(actions):
    return [GAIN[state] if action else SCORE[state] for state, action in enumerate(actions)]


def grad_log_prob(theta, state, action):
    """d log pi / d theta; the last state has no choice."""
    gradient = torch.zeros(STATES - 1, dtype=torch.float64)
    if state < STATES - 1:
        gradient[state] = action - torch.sigmoid(theta[state])
    return gradient


def exact_gradient(theta):
    return sum(
        p * sum(reward(a)) * sum(grad_log_prob(theta, s, x) for s, x in enumerate(a)) for p, a in conversations(theta)
    )


def layout(group):
    """Rows of a group: two tokens per turn and one observation between turns."""
    masks, rewards, of_token, states, counts = [], [], [], [], []
    for actions in group:
        for number, value in enumerate(reward(actions)):
            if number:
                masks.append(0)
                rewards.append(0.0)
                of_token.append(-1)
            of_token += [len(states)] * 2
            masks += [1, 1]
            rewards += [0.0, value]
            states.append(number)
        counts.append(len(actions))
    lengths = torch.tensor([3 * count - 1 for count in counts])
    credit = Credit(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(masks),
        lengths,
        groups=torch.zeros(len(group), dtype=torch.int64),
        norm_by_std=False,
    )
    return credit, Turns(torch.tensor(counts), torch.tensor(of_token), torch.tensor(states))


def expected_gradient(theta, name, estimator="grpo", n=2):
    """E over groups of n of the mean over rows of sum_k A_k grad log pi(a_k)."""
    total = torch.zeros(STATES - 1, dtype=torch.float64)
    for group in itertools.product(list(conversations(theta)), repeat=n):
        credit, turns = layout([actions for _, actions in group])
        advantages, _ = TURN_CREDITS[name].load()(credit, turns, ADVANTAGES[estimator].load())
        per_turn = advantages[credit.response_mask.bool()].reshape(-1, 2)
        assert torch.equal(per_turn[:, 0], per_turn[:, 1])  # both tokens of a turn
        gradients = [grad_log_prob(theta, s, x) for _, actions in group for s, x in enumerate(actions)]
        estimate = sum(a * g for a, g in zip(per_turn[:, 0], gradients, strict=True)) / n
        total += math.prod(p for p, _ in group) * estimate
    return total


THETAS = [torch.tensor(values, dtype=torch.float64) for values in ([0.0, 0.0], [1.0, -0.5], [-1.5, 0.8])]


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("n", [2, 3])
def test_return_to_go_is_unbiased(theta, n):
    torch.testing.assert_close(expected_gradient(theta, "return_to_go", n=n), exact_gradient(theta))


@pytest.mark.parametrize("theta", THETAS)
def test_trajectory_credit_is_unbiased_up_to_its_scale(theta):
    """GRPO's baseline includes the row itself, which scales the gradient by (n - 1) / n; RLOO's does not."""
    exact = exact_gradient(theta)
    torch.testing.assert_close(expected_gradient(theta, "trajectory", "dr_grpo"), exact / 2)
    torch.testing.assert_close(expected_gradient(theta, "trajectory", "rloo"), exact)


@pytest.mark.parametrize("theta", THETAS)
def test_outcome_credit_follows_the_score_alone(theta):
    paid = list(GAIN)
    try:
        GAIN[:] = [0.0] * STATES
        unpaid = exact_gradient(theta)
    finally:
        GAIN[:] = paid
    torch.testing.assert_close(expected_gradient(theta, "outcome", "rloo"), unpaid)
    assert (unpaid - exact_gradient(theta)).abs().max() > 0.01


def test_normalizing_per_turn_number_is_biased_when_the_policy_decides_when_to_stop():
    """The value of going on is lost: with equal scores everywhere, going on is only worth what it earns."""
    theta = THETAS[0]
    biased, exact = expected_gradient(theta, "per_turn", "rloo"), exact_gradient(theta)
    assert (biased - exact).abs().max() > 0.05
    # What is missing is the reward of going on, in expectation: -E[r_intermediate] per extra turn.
    assert (biased < exact).all()


@pytest.mark.parametrize("theta", THETAS)
def test_gigpo_points_along_the_exact_gradient(theta):
    direction, exact = expected_gradient(theta, "gigpo"), exact_gradient(theta)
    assert torch.nn.functional.cosine_similarity(direction, exact, dim=0) > 0.9


@pytest.mark.parametrize("theta", THETAS)
def test_turn_gae_with_the_true_values_is_unbiased(theta):
    """With V equal to the true value and any lam, E[A grad log pi] is the exact gradient."""
    stop = [float(torch.sigmoid(-theta[s])) if s < STATES - 1 else 1.0 for s in range(STATES)]
    value = [0.0] * (STATES + 1)
    for state in reversed(range(STATES)):
        value[state] = stop[state] * SCORE[state] + (1 - stop[state]) * (GAIN[state] + value[state + 1])
    total = torch.zeros(STATES - 1, dtype=torch.float64)
    for probability, actions in conversations(theta):
        credit, turns = layout([actions])
        values = torch.tensor([value[int(turns.states[t])] if t >= 0 else 9.0 for t in turns.of_token.tolist()])
        columns = (credit.token_level_rewards, credit.response_mask, credit.lengths)
        credit = Unwhitened(*columns, values=values.double(), lam=0.3)
        advantages, returns = TURN_CREDITS["gae"].load()(credit, turns, None)
        first = [turns.of_token.tolist().index(turn) for turn in range(len(actions))]
        assert torch.equal(returns[credit.response_mask.bool()][::2], (advantages + credit.values)[first])
        gradients = [grad_log_prob(theta, s, x) for s, x in enumerate(actions)]
        total += probability * sum(advantages[t] * g for t, g in zip(first, gradients, strict=True))
    torch.testing.assert_close(total, exact_gradient(theta))
