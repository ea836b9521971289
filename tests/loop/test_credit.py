from dataclasses import replace

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.kl import AdaptiveKL, FixedKL
from burnish.batch import Batch, Ragged
from burnish.config.algorithm import AlgorithmConfig
from burnish.loop.credit import credit, group_numbers, token_rewards

LENGTHS = [3, 1, 0, 2]


def ragged(*rows):
    return Ragged.of([torch.tensor(row, dtype=torch.float32) for row in rows], torch.float32)


@pytest.fixture
def batch():
    """Two prompts with two responses each; one response is empty, one token is an observation."""
    return Batch(
        uid=["a", "a", "b", "b"],
        responses=Ragged.of([[1] * n for n in LENGTHS], torch.int64),
        response_mask=ragged([1, 0, 1], [1], [], [1, 1]),
        token_level_scores=ragged([0, 0, 1.0], [0.5], [], [0, 2.0]),
        old_log_probs=ragged([-1.0, -9.0, -2.0], [-1.5], [], [-0.5, -1.0]),
        ref_log_prob=ragged([-1.5, -1.0, -2.5], [-1.0], [], [-0.5, -3.0]),
    )


KL_ROW_MEANS = [0.5, -0.5, 0.0, 1.0]  # log pi - log ref, over the model's own tokens


def test_without_kl_rewards_are_the_scores(batch):
    rewards, metrics = token_rewards(batch, AlgorithmConfig(use_kl_in_reward=False), FixedKL(0.1))
    assert torch.equal(rewards, batch["token_level_scores"].flat)
    assert metrics == {}


def test_the_kl_is_taken_off_every_own_token(batch):
    rewards, metrics = token_rewards(batch, AlgorithmConfig(use_kl_in_reward=True), FixedKL(0.1))
    expected = [0 - 0.05, 0.0, 1.0 - 0.05, 0.5 + 0.05, 0 - 0.0, 2.0 - 0.2]
    torch.testing.assert_close(rewards, torch.tensor(expected))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(KL_ROW_MEANS) / 4)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1


def test_the_estimator_of_the_kl_is_the_configs(batch):
    config = AlgorithmConfig(use_kl_in_reward=True, kl_penalty="abs")
    _, metrics = token_rewards(batch, config, FixedKL(0.1))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(map(abs, KL_ROW_MEANS)) / 4)


def test_an_adaptive_controller_learns_after_its_coefficient_was_used(batch):
    kl = AdaptiveKL(0.1, target_kl=0.2, horizon=100)
    rewards, metrics = token_rewards(batch, AlgorithmConfig(use_kl_in_reward=True), kl)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1
    torch.testing.assert_close(rewards[2], torch.tensor(0.95))
    # the measured 0.25 is above the target of 0.2, by more than the clip allows: + 0.2 x 4 responses / 100
    assert kl.value == pytest.approx(0.1 * (1 + 0.2 * 4 / 100))
    _, metrics = token_rewards(batch, AlgorithmConfig(use_kl_in_reward=True), kl)
    assert metrics["actor/reward_kl_penalty_coeff"] == pytest.approx(0.1 * 1.008)


def test_groups_are_uids_wherever_they_stand():
    assert group_numbers(["x", "y", "x", "z", "y"]).tolist() == [0, 1, 0, 2, 1]


def test_grpo_compares_the_responses_of_a_prompt(batch):
    config = AlgorithmConfig(norm_adv_by_std_in_grpo=False)
    done, _ = credit(batch, config, ADVANTAGES["grpo"], FixedKL(0.0))
    assert done["advantages"].lists() == [[0.25, 0.0, 0.25], [-0.25], [], [1.0, 1.0]]
    assert torch.equal(done["token_level_rewards"].flat, batch["token_level_scores"].flat)
    assert {"advantages", "returns", "token_level_rewards"} <= set(done)


def test_the_order_of_rows_changes_no_advantage(batch):
    order = [3, 0, 2, 1]
    there, _ = credit(batch, AlgorithmConfig(), ADVANTAGES["grpo"], FixedKL(0.0))
    here, _ = credit(batch.select(order), AlgorithmConfig(), ADVANTAGES["grpo"], FixedKL(0.0))
    assert torch.equal(here["advantages"].flat, there["advantages"].select(torch.tensor(order)).flat)


def test_gae_reads_values_gamma_and_lam(batch):
    config = AlgorithmConfig(gamma=0.5, lam=0.0)
    done, _ = credit(batch.add(values=ragged([1, 7, 1], [1], [], [2, 1])), config, ADVANTAGES["gae"], FixedKL(0.0))
    # lam = 0: the return is r_t + gamma V_{t+1}, stepping over the observation
    assert done["returns"].lists() == [[0.5, 0.0, 1.0], [0.5], [], [0.5, 2.0]]
    flat = torch.tensor([0.5 - 1, 1 - 1, 0.5 - 1, 0.5 - 2, 2 - 1])
    white = (flat - flat.mean()) / flat.std()
    torch.testing.assert_close(done["advantages"].flat[[0, 2, 3, 4, 5]], white, rtol=1e-4, atol=1e-4)


def test_remax_takes_the_greedy_score_off(batch):
    greedy = batch.add(greedy_scores=torch.tensor([0.25, 0.25, 1.0, 1.0]))
    done, _ = credit(greedy, AlgorithmConfig(), ADVANTAGES["remax"], FixedKL(0.0))
    assert done["advantages"].lists() == [[0.75, 0.0, 0.75], [0.25], [], [1.0, 1.0]]


def test_rewards_with_kl_reach_the_estimator(batch):
    config = replace(AlgorithmConfig(), use_kl_in_reward=True)
    done, metrics = credit(batch, config, ADVANTAGES["reward"], FixedKL(0.1))
    assert done["advantages"][1].tolist() == pytest.approx([0.55])
    assert "actor/reward_kl_penalty" in metrics
