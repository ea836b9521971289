"""Every estimator against loops over padded rows in float64, written from the formulas."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES, Credit
from burnish.errors import UserError

GAMMA, LAM = 0.9, 0.8


@pytest.fixture
def credit(columns) -> Credit:
    rewards = columns.noise() * columns.mask
    rows = len(columns.lengths)
    greedy = torch.randn(rows, generator=columns.generator, dtype=torch.float64)
    credit = Credit(rewards, columns.mask, columns.lengths, columns.groups, columns.noise(), greedy)
    return replace(credit, gamma=GAMMA, lam=LAM, **policy_columns(columns))


def policy_columns(columns):
    """What the policy computes before its update: its log-probs, the sum of its squared probabilities, weights."""
    log_probs = -columns.noise().abs() - 0.1
    spread = columns.noise().abs().clamp(max=1)
    weights = 1 + columns.noise(0.1)
    return {"old_log_probs": log_probs, "sum_pi_squared": log_probs.exp() * spread, "importance_weights": weights}


def split(flat, credit):
    return [row.tolist() for row in flat.split(credit.lengths.tolist())]


def mean(x):
    return sum(x) / len(x)


def std(x):
    return math.sqrt(sum((v - mean(x)) ** 2 for v in x) / (len(x) - 1))


def groups_of(credit):
    scores = [sum(row) for row in split(credit.token_level_rewards, credit)]
    numbers = credit.groups.tolist()
    return scores, [[s for s, n in zip(scores, numbers, strict=True) if n == mine] for mine in numbers]


def whitened(rows, masks):
    kept = [v for row, mask in zip(rows, masks, strict=True) for v, m in zip(row, mask, strict=True) if m]
    scale = math.sqrt(std(kept) ** 2 + 1e-8)
    return [
        [(v - mean(kept)) / scale * m for v, m in zip(row, mask, strict=True)]
        for row, mask in zip(rows, masks, strict=True)
    ]


def ref_gae(credit):
    masks, values = split(credit.response_mask, credit), split(credit.values, credit)
    raw, returns = [], []
    for r, m, v in zip(split(credit.token_level_rewards, credit), masks, values, strict=True):
        running, next_value, out = 0.0, 0.0, [0.0] * len(r)
        for t in reversed(range(len(r))):
            if m[t]:
                running = r[t] + GAMMA * next_value - v[t] + GAMMA * LAM * running
                next_value, out[t] = v[t], running
        raw.append(out)
        returns.append([(a + b) * keep for a, b, keep in zip(out, v, m, strict=True)])
    return whitened(raw, masks), returns


def ref_returns(credit, gamma):
    rows = []
    for r, m in zip(split(credit.token_level_rewards, credit), split(credit.response_mask, credit), strict=True):
        running, out = 0.0, [0.0] * len(r)
        for t in reversed(range(len(r))):
            if m[t]:
                running = r[t] + gamma * running
                out[t] = running
        rows.append(out)
    return rows


def ref_reinforce_plus_plus(credit):
    returns = ref_returns(credit, GAMMA)
    return whitened(returns, split(credit.response_mask, credit)), returns


def ref_remax(credit):
    returns = ref_returns(credit, 1.0)
    masks, greedy = split(credit.response_mask, credit), credit.greedy_scores.tolist()
    rows = zip(returns, masks, greedy, strict=True)
    return [[(g - b) * keep for g, keep in zip(row, m, strict=True)] for row, m, b in rows], returns


def on_tokens(per_row, credit):
    rows = [[a * m for m in mask] for a, mask in zip(per_row, split(credit.response_mask, credit), strict=True)]
    return rows, rows


def ref_grpo(credit):
    scores, groups = groups_of(credit)
    rows = zip(scores, groups, strict=True)
    return on_tokens([(s - mean(g)) / (std(g) + 1e-6) if len(g) > 1 else s / (1 + 1e-6) for s, g in rows], credit)


def ref_dr_grpo(credit):
    scores, groups = groups_of(credit)
    return on_tokens([s - mean(g) if len(g) > 1 else s for s, g in zip(scores, groups, strict=True)], credit)


def ref_baseline(credit):
    rows, _ = ref_dr_grpo(credit)
    white = whitened(rows, split(credit.response_mask, credit))
    return white, white


def ref_rloo(credit, alone=None):
    scores, groups = groups_of(credit)
    others = [(s, (sum(g) - s) / (len(g) - 1) if len(g) > 1 else None) for s, g in zip(scores, groups, strict=True)]
    return on_tokens([s - b if b is not None else (s if alone is None else alone) for s, b in others], credit)


def ref_opo(credit):
    scores, _ = groups_of(credit)
    lengths = [sum(mask) for mask in split(credit.response_mask, credit)]
    numbers = credit.groups.tolist()
    out = []
    for i, mine in enumerate(numbers):
        members = [j for j, n in enumerate(numbers) if n == mine]
        total = sum(lengths[j] for j in members)
        base = sum(lengths[j] * scores[j] for j in members) / total if len(members) > 1 else 0.0
        out.append(scores[i] - base)
    return on_tokens(out, credit)


def ref_gpg(credit):
    scores, groups = groups_of(credit)
    alpha = len(scores) / max(1, sum(s != 0 for s in scores))
    rows = zip(scores, groups, strict=True)
    return on_tokens([alpha * (s - mean(g) if len(g) > 1 else s) for s, g in rows], credit)


def ref_token_baseline(credit, compact):
    """Cell by cell: rows of a group share a baseline at each position; `compact` counts sampled tokens only."""
    returns = ref_returns(credit, 1.0)
    masks, groups = split(credit.response_mask, credit), credit.groups.tolist()
    energies = []
    per_row = (credit.old_log_probs, credit.sum_pi_squared, credit.importance_weights)
    for log_probs, squares, weights, mask in zip(*(split(x, credit) for x in per_row), masks, strict=True):
        total, row = 0.0, []
        for t, keep in enumerate(mask):
            total += (1 - 2 * math.exp(log_probs[t]) + squares[t]) * weights[t] ** 2 * keep
            row.append(total)
        energies.append(row)
    places = [[sum(mask[:t]) if compact else t for t in range(len(mask))] for mask in masks]
    counts = [sum(mask) for mask in masks]
    advantages = []
    for i, mask in enumerate(masks):
        group = [j for j, number in enumerate(groups) if number == groups[i]]
        others = [counts[j] for j in group if j != i]
        row = []
        for t, keep in enumerate(mask):
            cell = [(j, s) for j in group for s, m in enumerate(masks[j]) if m and places[j][s] == places[i][t]]
            tail = not others or (counts[i] > max(others) and places[i][t] >= max(others))
            weight = sum(energies[j][s] for j, s in cell)
            base = 0.0 if tail else sum(returns[j][s] * energies[j][s] for j, s in cell) / (weight + 1e-8)
            row.append((returns[i][t] - base) * keep)
        advantages.append(row)
    return advantages, returns


REFERENCES = {
    "gae": ref_gae,
    "reinforce_plus_plus": ref_reinforce_plus_plus,
    "remax": ref_remax,
    "grpo": ref_grpo,
    "grpo_vectorized": ref_grpo,
    "dr_grpo": ref_dr_grpo,
    "reinforce_plus_plus_baseline": ref_baseline,
    "rloo": ref_rloo,
    "rloo_vectorized": lambda credit: ref_rloo(credit, alone=0.0),
    "opo": ref_opo,
    "gpg": ref_gpg,
    "optimal_token_baseline": lambda credit: ref_token_baseline(credit, compact=False),
    "tir_optimal_token_baseline": lambda credit: ref_token_baseline(credit, compact=True),
    "reward": lambda credit: on_tokens(groups_of(credit)[0], credit),
    "none": lambda credit: (split(credit.token_level_rewards, credit),) * 2,
}


def test_every_row_has_a_reference():
    assert set(ADVANTAGES.names()) == {*REFERENCES, "grpo_passk"}


@pytest.mark.parametrize("name", REFERENCES)
def test_estimator_is_its_formula(name, credit):
    advantages, returns = ADVANTAGES[name].load()(credit)
    expected = REFERENCES[name](credit)
    assert advantages.tolist() == pytest.approx([a for row in expected[0] for a in row], rel=1e-9, abs=1e-12)
    assert returns.tolist() == pytest.approx([g for row in expected[1] for g in row], rel=1e-9, abs=1e-12)
    assert advantages.dtype == credit.token_level_rewards.dtype


@pytest.mark.parametrize("name", REFERENCES)
def test_permuting_rows_permutes_the_result(name, credit):
    order = torch.randperm(len(credit.lengths), generator=torch.Generator().manual_seed(3))

    def moved(flat):
        return torch.cat([flat.split(credit.lengths.tolist())[i] for i in order])

    flat = ("token_level_rewards", "response_mask", "values", "old_log_probs", "sum_pi_squared", "importance_weights")
    rows = ("lengths", "groups", "greedy_scores")
    other = replace(
        credit,
        **{name: moved(getattr(credit, name)) for name in flat},
        **{name: getattr(credit, name)[order] for name in rows},
    )
    estimator = ADVANTAGES[name].load()
    for before, after in zip(estimator(credit), estimator(other), strict=True):
        torch.testing.assert_close(moved(before), after)


def sequence_credit(scores, groups, **more) -> Credit:
    """One token per row."""
    rows = len(scores)
    return Credit(
        torch.tensor(scores), torch.ones(rows), torch.ones(rows, dtype=torch.int64), torch.tensor(groups), **more
    )


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "rloo_vectorized", "opo", "gpg", "grpo_passk"])
def test_equal_scores_in_a_group_give_exactly_zero(name):
    # 0.1 + 0.1 + 0.1 is not 0.3 in binary: a plain mean would leave a rest, and the std's epsilon would blow it up.
    advantages, _ = ADVANTAGES[name].load()(sequence_credit([0.1] * 7, [0] * 7))
    assert advantages.tolist() == [0.0] * 7


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grpo", 3 / (1 + 1e-6)), ("dr_grpo", 3.0), ("rloo", 3.0), ("rloo_vectorized", 0.0), ("opo", 3.0), ("gpg", 3.0)],
)
def test_a_group_of_one_has_no_baseline(name, expected):
    advantages, _ = ADVANTAGES[name].load()(sequence_credit([3.0, 1.0], [0, 1]))
    assert advantages[0].item() == pytest.approx(expected)


def test_whitening_estimators_on_a_single_token_give_zero():
    for name in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        assert ADVANTAGES[name].load()(sequence_credit([3.0], [0]))[0].tolist() == [0.0]


def test_optimal_token_baseline_by_hand():
    """Two responses, of two tokens and of one; every probability is 1/2 over a vocabulary of two, so w = 1/2."""
    credit = Credit(
        torch.tensor([0.0, 3.0, 1.0]),
        torch.ones(3),
        torch.tensor([2, 1]),
        torch.tensor([0, 0]),
        old_log_probs=torch.full((3,), 0.5).log(),
        sum_pi_squared=torch.full((3,), 0.5),
    )
    advantages, returns = ADVANTAGES["optimal_token_baseline"].load()(credit)
    assert returns.tolist() == [3, 3, 1]
    assert advantages.tolist() == pytest.approx([1, 3, -1])  # behind the second longest there is no baseline
    with_tail, _ = ADVANTAGES["optimal_token_baseline"].load()(credit, zero_tail=False)
    assert with_tail.tolist() == pytest.approx([1, 0, -1], abs=1e-6)
    # An importance weight of 2 on the first response counts four times.
    weighted, _ = ADVANTAGES["optimal_token_baseline"].load()(
        replace(credit, importance_weights=torch.tensor([2.0, 1, 1]))
    )
    assert weighted[0].item() == pytest.approx(3 - (4 * 3 + 1) / 5)


def test_passk_credits_only_the_leader():
    credit = sequence_credit([1.0, 4.0, 3.0, 2.0, 2.0, 0.0], [5, 5, 5, 9, 9, 9], norm_by_std=False)
    advantages, _ = ADVANTAGES["grpo_passk"].load()(credit)
    assert advantages.tolist() == [0, 1, 0, 0, 0, 0]  # 4 leads 3 by 1; a tie at the top is no lead
    normed, _ = ADVANTAGES["grpo_passk"].load()(sequence_credit([1.0, 4.0, 3.0], [5, 5, 5]))
    assert normed[1].item() == pytest.approx(1 / (std([1, 4, 3]) + 1e-6))


def test_passk_refuses_a_group_of_one():
    assert ADVANTAGES["grpo_passk"].metadata["min_group"] == 2
    with pytest.raises(ValueError, match="at least two responses"):
        ADVANTAGES["grpo_passk"].load()(sequence_credit([1.0, 2.0, 3.0], [0, 0, 1]))


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax"])
def test_a_reward_on_an_observation_reaches_the_token_before_it(name):
    zeros, lengths = torch.zeros(7), torch.tensor([5, 2])
    mask = torch.tensor([1, 1, 0, 1, 0, 1, 1])

    def returns(place):
        rewards = zeros.clone()
        rewards[place] = 1.0
        credit = Credit(rewards, mask, lengths, values=zeros, greedy_scores=torch.zeros(2), gamma=0.5)
        return ADVANTAGES[name].load()(credit)[1]

    assert returns(4).abs().sum() > 0
    assert torch.equal(returns(4), returns(3))  # the row's last slot is an observation
    assert torch.equal(returns(2), returns(1))


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_nothing_but_empty_responses(name):
    rows = torch.zeros(2, dtype=torch.int64)
    none = torch.empty(0)
    credit = Credit(none, none, rows, rows, none, torch.zeros(2), old_log_probs=none, sum_pi_squared=none)
    advantages, returns = ADVANTAGES[name].load()(credit)
    assert advantages.shape == returns.shape == (0,)


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_needs_names_what_is_missing_otherwise(name, credit):
    fields = {"values": "values", "groups": "groups", "greedy": "greedy_scores", "sum_pi_squared": "old_log_probs"}
    bare = Credit(credit.token_level_rewards, credit.response_mask, credit.lengths)
    row = ADVANTAGES[name]
    assert row.needs <= set(fields)
    if not row.needs:
        row.load()(bare)
        return
    with pytest.raises(ValueError, match="|".join(fields[need] for need in row.needs)):
        row.load()(bare)


def test_wrong_shapes_and_names_are_refused():
    with pytest.raises(ValueError, match="response_mask has shape"):
        Credit(torch.zeros(3), torch.zeros(2), torch.tensor([3]))
    with pytest.raises(UserError, match="Did you mean 'grpo'"):
        ADVANTAGES["gpro"]


def test_one_long_row_costs_neither_memory_nor_time(long_row, largest_tensor):
    rewards, values = long_row.noise().float(), long_row.noise().float()
    columns = (rewards, long_row.mask, long_row.lengths, long_row.groups, values, torch.zeros(1001))
    credit = Credit(*columns, gamma=0.99, lam=0.95, **policy_columns(long_row))
    start = time.perf_counter()
    with largest_tensor:
        results = {name: ADVANTAGES[name].load()(credit)[0] for name in REFERENCES}
    assert time.perf_counter() - start < 15
    assert largest_tensor.entries <= len(rewards)
    assert all(result.isfinite().all() for result in results.values())
    assert all(result[long_row.mask == 0].abs().sum() == 0 for result in results.values())
