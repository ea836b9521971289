"""OpenRLHF's ways of giving credit against loops over rows in float64: KL after comparing, bounds, walking, epsilon."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES, Credit, clip_scores

GAMMA, LAM = 0.9, 0.8
ROW_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "rloo_vectorized", "opo", "gpg", "reward", "reinforce_plus_plus_baseline")
EPS = 1e-3


@pytest.fixture
def credit(columns) -> Credit:
    """Scores on the last own token of each row, as rewards give them."""
    rewards = columns.noise() * columns.mask
    values = columns.noise()
    rows = len(columns.lengths)
    greedy = torch.randn(rows, generator=columns.generator, dtype=torch.float64)
    return Credit(rewards, columns.mask, columns.lengths, columns.groups, values, greedy, gamma=GAMMA, lam=LAM)


@pytest.fixture
def penalty(columns):
    return columns.noise(0.3) * columns.mask


def split(flat, credit):
    return [row.tolist() for row in flat.split(credit.lengths.tolist())]


def run(name, credit):
    return ADVANTAGES[name].load()(credit)


def mean(x):
    return sum(x) / len(x)


def own(flat, credit):
    return [x for x, m in zip(flat.tolist(), credit.response_mask.tolist(), strict=True) if m]


def ref_to_go(flat, credit):
    """What is still to come of a column, from each token on."""
    out = []
    for row in split(flat, credit):
        running, sums = 0.0, []
        for x in reversed(row):
            running += x
            sums.append(running)
        out += reversed(sums)
    return out


@pytest.mark.parametrize("name", [name for name in ROW_ESTIMATORS if name != "reinforce_plus_plus_baseline"])
def test_a_penalty_after_comparing_is_paid_token_by_token(name, credit, penalty):
    plain, _ = run(name, credit)
    advantages, returns = run(name, replace(credit, penalty=penalty))
    to_go = ref_to_go(penalty, credit)
    expected = [(a - k) * m for a, k, m in zip(plain.tolist(), to_go, credit.response_mask.tolist(), strict=True)]
    assert advantages.tolist() == pytest.approx(expected)
    assert torch.equal(advantages, returns)


def test_the_baseline_estimator_whitens_what_the_penalty_left(credit, penalty):
    centered, _ = run("dr_grpo", replace(credit, penalty=penalty))
    advantages, _ = run("reinforce_plus_plus_baseline", replace(credit, penalty=penalty, whitening="biased"))
    kept = own(centered, credit)
    scale = math.sqrt(mean([(x - mean(kept)) ** 2 for x in kept]))
    assert own(advantages, credit) == pytest.approx([(x - mean(kept)) / scale for x in kept])


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax", "none"])
def test_token_estimators_see_the_rewards_less_the_penalty(name, credit, penalty):
    """For them before and after are one."""
    before = run(name, replace(credit, token_level_rewards=credit.token_level_rewards - penalty))
    after = run(name, replace(credit, penalty=penalty))
    assert not torch.equal(run(name, credit)[0], after[0])
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other)


def test_the_order_matters_to_groups(credit, penalty):
    before, _ = run("grpo", replace(credit, token_level_rewards=credit.token_level_rewards - penalty))
    after, _ = run("grpo", replace(credit, penalty=penalty))
    assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_bounds_hold_for_what_comparing_leaves(name, credit, penalty):
    plain, _ = run(name, credit)
    assert plain.abs().max() > 0.5
    advantages, _ = run(name, replace(credit, clip=(-0.5, 0.4)))
    assert torch.equal(advantages, plain.clamp(-0.5, 0.4))
    with_penalty, _ = run(name, replace(credit, clip=(-0.5, 0.4), penalty=penalty))
    assert with_penalty.tolist() == pytest.approx(
        [
            (max(-0.5, min(0.4, a)) - k) * m
            for a, k, m in zip(plain.tolist(), ref_to_go(penalty, credit), credit.response_mask.tolist(), strict=True)
        ]
    )


def test_bounds_of_scores_stand_on_the_last_token(credit):
    clipped = clip_scores(credit.token_level_rewards, credit.lengths, -1.0, 0.5)
    touched = 0
    for raw, row in zip(split(credit.token_level_rewards, credit), split(clipped, credit), strict=True):
        if not row:
            continue
        assert sum(row) == pytest.approx(max(-1.0, min(0.5, sum(raw))))
        assert row[:-1] == raw[:-1]
        touched += row[-1] != raw[-1]
    assert 0 < touched < len(credit.lengths)


def ref_walking_gae(credit):
    """Every token is a step; what is no own token has value 0."""
    raw, returns = [], []
    parts = (credit.token_level_rewards, credit.response_mask, credit.values)
    for r, m, v in zip(*(split(x, credit) for x in parts), strict=True):
        running, next_value, out = 0.0, 0.0, [0.0] * len(r)
        for t in reversed(range(len(r))):
            value = v[t] * m[t]
            running = r[t] * m[t] + GAMMA * next_value - value + GAMMA * LAM * running
            next_value, out[t] = value, running
        raw += [a * keep for a, keep in zip(out, m, strict=True)]
        returns += [(a + b) * keep for a, b, keep in zip(out, v, m, strict=True)]
    return raw, returns


def test_gae_may_walk_through_observations(credit):
    raw, returns = ref_walking_gae(credit)
    advantages, found = run("gae", replace(credit, observations="walk", whitening="mean"))
    assert found.tolist() == pytest.approx(returns)
    kept = own(torch.tensor(raw), credit)
    assert own(advantages, credit) == pytest.approx([x - mean(kept) for x in kept])
    assert not torch.allclose(found, run("gae", credit)[1])


def test_without_observations_walking_is_skipping(credit):
    plain = replace(credit, response_mask=torch.ones_like(credit.response_mask))
    for one, other in zip(run("gae", plain), run("gae", replace(plain, observations="walk")), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_the_epsilon_of_the_group(name, credit):
    centered, _ = run("dr_grpo", credit)
    near, far = (run(name, replace(credit, std_eps=eps))[0] for eps in (1e-9, EPS))
    spread = torch.where(near == 0, torch.ones_like(near), centered / near)  # std_g + 1e-9
    torch.testing.assert_close(far, centered / (spread + EPS), rtol=1e-6, atol=1e-9)


def test_passk_has_the_epsilon_too():
    rewards, rows = torch.tensor([1.0, 3.0], dtype=torch.float64), torch.ones(2, dtype=torch.int64)
    credit = Credit(rewards, torch.ones(2), rows, torch.zeros(2, dtype=torch.int64), std_eps=0.5)
    assert run("grpo_passk", credit)[0].tolist() == pytest.approx([0.0, 2 / (math.sqrt(2) + 0.5)])


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("whitening", ["unbiased", "biased", "mean"])
def test_whitening_is_over_all_own_tokens(name, whitening, credit):
    advantages, _ = run(name, replace(credit, whitening=whitening))
    kept = own(advantages, credit)
    var = sum(x * x for x in kept) / (len(kept) - (whitening == "unbiased"))
    assert mean(kept) == pytest.approx(0, abs=1e-9)
    assert (var == pytest.approx(1, rel=1e-6)) is (whitening != "mean")


# What holds for every estimator, whatever the options


OPTIONS = {
    "plain": {},
    "openrlhf": {"whitening": "biased", "observations": "walk", "std_eps": 1e-9, "clip": (-10.0, 10.0)},
}


def asked(lengths, mask, groups, options, scores=None):
    """Credit with a score on each row's last token, and a penalty."""
    generator = torch.Generator().manual_seed(4)
    tokens, rows = int(lengths.sum()), len(lengths)
    rewards = torch.zeros(tokens)
    rewards[(lengths.cumsum(0) - 1)[lengths > 0]] = torch.randn(rows, generator=generator)[lengths > 0]
    if scores is not None:
        rewards[(lengths.cumsum(0) - 1)[lengths > 0]] = scores
    values, penalty = (torch.randn(tokens, generator=generator) for _ in range(2))
    extra = {} if not options else {"penalty": penalty * mask * 0.1}
    extra |= {"old_log_probs": -values.abs(), "sum_pi_squared": (-values.abs()).exp() / 2}
    return Credit(rewards, mask, lengths, groups, values, torch.zeros(rows), 0.9, 0.8, **options, **extra)


@pytest.mark.parametrize("name", ADVANTAGES.names())
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_observations_get_nothing_and_change_little(name, options):
    """A response with observations in it has no credit there; without them it is finite everywhere."""
    lengths = torch.tensor([6, 4, 0, 5])
    mask = torch.tensor([1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1])
    groups = torch.tensor([0, 0, 1, 1])
    advantages, returns = run(name, asked(lengths, mask, groups, options))
    for found in (advantages, returns):
        assert found.isfinite().all() and found[mask == 0].abs().sum() == 0
    assert advantages.abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in ADVANTAGES.names() if name != "grpo_passk"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_groups_of_one_and_empty_responses_are_finite(name, options):
    lengths = torch.tensor([3, 0, 1, 2])
    advantages, returns = run(name, asked(lengths, torch.ones(6), torch.arange(4), options))
    assert advantages.shape == returns.shape == (6,)
    assert advantages.isfinite().all() and returns.isfinite().all()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "rloo_vectorized", "opo", "gpg", "grpo_passk"])
@pytest.mark.parametrize("eps", [1e-6, 1e-9])
def test_groups_of_equal_scores_leave_the_penalty_alone(name, eps):
    lengths, groups = torch.tensor([3, 1, 2]), torch.zeros(3, dtype=torch.int64)
    credit = asked(lengths, torch.ones(6), groups, {"std_eps": eps, "clip": (-10.0, 10.0)}, scores=0.1)
    advantages, _ = run(name, credit)
    assert advantages.tolist() == pytest.approx([-k for k in ref_to_go(credit.penalty, credit)], abs=1e-7)
    assert run(name, replace(credit, penalty=None))[0].tolist() == [0.0] * 6


@pytest.mark.parametrize("name", [name for name in ADVANTAGES.names() if name != "grpo_passk"])
def test_one_long_row_costs_no_memory_with_every_option(name, long_row, largest_tensor):
    rewards, values, penalty = (long_row.noise().float() for _ in range(3))
    columns = (rewards, long_row.mask, long_row.lengths, long_row.groups, values, torch.zeros(1001))
    policy = {"old_log_probs": -values.abs(), "sum_pi_squared": (-values.abs()).exp() / 2}
    credit = Credit(*columns, 0.99, 0.95, **OPTIONS["openrlhf"], **policy, penalty=penalty * long_row.mask)
    with largest_tensor:
        advantages, _ = run(name, credit)
    assert largest_tensor.entries <= len(rewards)
    assert advantages.isfinite().all()
