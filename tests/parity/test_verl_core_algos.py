"""The padded calls give what the flat ones give, and verl-style estimators can be plugged in."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES, Credit
from burnish.compat import verl_core_algos as verl
from burnish.errors import UserError

TOKEN_ESTIMATORS = (
    "gae",
    "remax",
    "reinforce_plus_plus",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)


@pytest.fixture
def credit() -> Credit:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 1, 4, 2])
    rewards, values = (torch.randn(10, generator=generator) for _ in range(2))
    mask = torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 1, 1])
    groups = torch.tensor([1, 1, 0, 0])
    return Credit(rewards * mask, mask, lengths, groups, values, torch.tensor([0.5, 0.5, 1.0, 1.0]), 0.9, 0.8)


def pad(flat, credit):
    rows = flat.split(credit.lengths.tolist())
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


@pytest.mark.parametrize("name", [n for n in ADVANTAGES.names() if n not in TOKEN_ESTIMATORS])
def test_padded_estimators_agree_with_flat_ones(name, credit):
    rewards, mask = pad(credit.token_level_rewards, credit), pad(credit.response_mask, credit)
    padded, _ = verl.get_adv_estimator_fn(name)(rewards, mask, credit.groups.numpy())
    torch.testing.assert_close(padded, pad(ADVANTAGES[name].load()(credit)[0], credit))


def test_padded_token_estimators_agree_with_flat_ones(credit):
    rewards, mask, values = (pad(c, credit) for c in (credit.token_level_rewards, credit.response_mask, credit.values))
    calls = {
        "gae": verl.compute_gae_advantage_return(rewards, values, mask, torch.tensor(0.9), 0.8),
        "remax": verl.compute_remax_outcome_advantage(rewards, credit.greedy_scores, mask),
        "reinforce_plus_plus": verl.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.9),
    }
    for name, padded in calls.items():
        for got, expected in zip(padded, ADVANTAGES[name].load()(credit), strict=True):
            torch.testing.assert_close(got, pad(expected, credit))


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@pytest.mark.parametrize("with_weights", [True, False])
def test_padded_token_baselines_agree_with_flat_ones(name, with_weights, credit):
    log_probs = -credit.values.abs()
    columns = {"old_log_probs": log_probs, "sum_pi_squared": log_probs.exp() / 2}
    weights = {"importance_weights": 1 + log_probs / 10} if with_weights else {}
    padded = {column: pad(x, credit) for column, x in columns.items()}
    if with_weights:
        padded["rollout_is_weights"] = pad(weights["importance_weights"], credit)
    rewards, mask = pad(credit.token_level_rewards, credit), pad(credit.response_mask, credit)
    for tail in (True, False):
        results = verl.get_adv_estimator_fn(name)(
            rewards, mask, credit.groups.numpy(), **padded, handle_zero_tail=tail, config=None
        )
        flat = ADVANTAGES[name].load()(replace(credit, **columns, **weights), zero_tail=tail)
        for got, expected in zip(results, flat, strict=True):
            torch.testing.assert_close(got, pad(expected, credit))


def test_sequence_weights_and_geo_mean_ignore_padding():
    """What lies in the padding must not matter, nor may NaN there."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1.0]])
    ratio = torch.tensor([[0.1, 0.2, 5.0, torch.nan], [0.1, -0.2, 0.3, 0.1]])
    weights, metrics = verl.compute_rollout_correction_weights(ratio, mask, "sequence", 2.0)
    assert weights.tolist() == [
        pytest.approx([math.exp(0.3)] * 2 + [0, 0]),
        pytest.approx([math.exp(0.3)] * 4),
    ]
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(math.exp(0.3))
    clean = verl.compute_rollout_correction_weights(ratio.masked_fill(mask == 0, 0.0), mask, "sequence", 2.0)[0]
    assert torch.equal(weights, clean)
    old, new = torch.zeros(2, 4) - 1, torch.zeros(2, 4) - 1
    loss, _ = verl.compute_policy_loss_geo_mean(old, new, torch.ones(2, 4), mask, rollout_is_weights=ratio.exp())
    means = [(0.1 + 0.2) / 2, (0.1 - 0.2 + 0.3 + 0.1) / 4]
    assert loss.item() == pytest.approx(-sum(map(math.exp, means)) / 2)


def test_a_verl_style_estimator_runs_as_one_of_ours(credit):
    def halved(token_level_rewards, response_mask, index, config=None):
        assert index.tolist() == [1, 1, 0, 0]
        scores = token_level_rewards.sum(-1, keepdim=True) * config.gamma * config.get("lam", 0.0) / 2
        return scores * response_mask, scores * response_mask

    estimator = verl.estimator_from_verl(halved)
    assert estimator.needs == {"groups"}
    advantages, _ = estimator(credit)
    reward, _ = ADVANTAGES["reward"].load()(credit)
    torch.testing.assert_close(advantages, reward * 0.9 * 0.8 / 2)


def test_register_adv_est_adds_a_row(monkeypatch, credit):
    monkeypatch.setattr(ADVANTAGES, "entries", dict(ADVANTAGES.entries))

    @verl.register_adv_est("mine")
    def mine(token_level_rewards, response_mask, values, **rest):
        assert "reward_baselines" in rest
        return values * response_mask, values

    assert ADVANTAGES["mine"].needs == {"values"}
    assert torch.equal(ADVANTAGES["mine"].load()(credit)[1], credit.values)


def test_agg_loss_with_global_counts_adds_up_over_ranks():
    loss, mask = torch.randn(4, 5), torch.ones(4, 5)
    for mode in ("token-mean", "seq-mean-token-mean"):
        whole = verl.agg_loss(loss, mask, mode)
        parts = [
            verl.agg_loss(loss[i : i + 2], mask[:2], mode, dp_size=2, batch_num_tokens=20, global_batch_size=4)
            for i in (0, 2)
        ]
        torch.testing.assert_close((parts[0] + parts[1]) / 2, whole)


def test_policy_losses_read_verls_actor_section():
    actor = SimpleNamespace(
        clip_ratio=0.1, clip_ratio_low=None, clip_ratio_high=0.5, clip_ratio_c=2.0, policy_loss=SimpleNamespace()
    )
    old, new, adv, mask = torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)
    loss, metrics = verl.get_policy_loss_fn("vanilla")(old, new, adv, mask, "token-sum", actor)
    assert loss.item() == pytest.approx(-1.5 + 0.9)
    assert metrics["actor/pg_clipfrac"] == 1.0
    weighted, _ = verl.compute_policy_loss_vanilla(old, new, adv, mask, "token-sum", actor, 2 * torch.ones(1, 2))
    assert weighted.item() == pytest.approx(2 * loss.item())


def test_entropy_rewards_and_controller():
    logits, mask = torch.zeros(1, 2, 4), torch.tensor([[1.0, 0.0]])
    assert verl.compute_entropy_loss(logits, mask).item() == pytest.approx(torch.tensor(4.0).log().item())
    scores, old, ref = torch.tensor([[1.0]]), torch.tensor([[-1.0]]), torch.tensor([[-3.0]])
    assert verl.compute_rewards(scores, old, ref, kl_ratio=0.1).item() == pytest.approx(0.8)
    settings = SimpleNamespace(type="adaptive", kl_coef=0.2, target_kl=0.1, horizon=100)
    assert verl.get_kl_controller(settings).value == 0.2


def test_what_is_not_offered_is_refused():
    rewards, mask = torch.zeros(2, 2), torch.ones(2, 2)
    with pytest.raises(ValueError, match="cliprange"):
        verl.compute_policy_loss(rewards, rewards, rewards, mask)
    with pytest.raises(UserError, match="no such policy loss"):
        verl.get_policy_loss_fn("vanila")
