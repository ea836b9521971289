from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.algos.advantages import ADVANTAGES
from burnish.algos.correction import Rejection, Weighting
from burnish.algos.kl import AdaptiveKL, FixedKL
from burnish.batch import Batch, Ragged
from burnish.config.algorithm import AlgorithmConfig, PfPpoConfig
from burnish.loop.correct import Correction
from burnish.loop.credit import credit, filtrate, group_numbers
from burnish.rollout.trajectory import Turn

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


def rewards_of(batch, config, kl):
    """The token rewards of a step, and its numbers."""
    done, metrics = credit(batch, config, ADVANTAGES["none"], kl)
    return done["token_level_rewards"].flat, metrics


KL_ROW_MEANS = [0.5, -0.5, 0.0, 1.0]  # log pi - log ref, over the model's own tokens


def test_without_kl_rewards_are_the_scores(batch):
    rewards, metrics = rewards_of(batch, AlgorithmConfig(use_kl_in_reward=False), FixedKL(0.1))
    assert torch.equal(rewards, batch["token_level_scores"].flat)
    assert metrics == {}


def test_the_kl_is_taken_off_every_own_token(batch):
    rewards, metrics = rewards_of(batch, AlgorithmConfig(use_kl_in_reward=True), FixedKL(0.1))
    expected = [0 - 0.05, 0.0, 1.0 - 0.05, 0.5 + 0.05, 0 - 0.0, 2.0 - 0.2]
    torch.testing.assert_close(rewards, torch.tensor(expected))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(KL_ROW_MEANS) / 4)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1


def test_the_estimator_of_the_kl_is_the_configs(batch):
    config = AlgorithmConfig(use_kl_in_reward=True, kl_penalty="abs")
    _, metrics = rewards_of(batch, config, FixedKL(0.1))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(map(abs, KL_ROW_MEANS)) / 4)


def test_an_adaptive_controller_learns_after_its_coefficient_was_used(batch):
    kl = AdaptiveKL(0.1, target_kl=0.2, horizon=100)
    rewards, metrics = rewards_of(batch, AlgorithmConfig(use_kl_in_reward=True), kl)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1
    torch.testing.assert_close(rewards[2], torch.tensor(0.95))
    # the measured 0.25 is above the target of 0.2, by more than the clip allows: + 0.2 x 4 responses / 100
    assert kl.value == pytest.approx(0.1 * (1 + 0.2 * 4 / 100))
    _, metrics = rewards_of(batch, AlgorithmConfig(use_kl_in_reward=True), kl)
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


def test_an_exact_kl_counts_where_the_estimator_needs_it(batch):
    exact = ragged([0.2, 9.0, 0.4], [0.3], [], [0.0, 0.1])
    config = AlgorithmConfig(use_kl_in_reward=True, kl_penalty="full")
    rewards, metrics = rewards_of(batch.add(exact_kl=exact), config, FixedKL(0.1))
    expected = [-0.02, 0.0, 1.0 - 0.04, 0.5 - 0.03, 0.0, 2.0 - 0.01]
    torch.testing.assert_close(rewards, torch.tensor(expected))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.3 + 0.3 + 0.0 + 0.05) / 4)


def test_a_clamp_holds_each_tokens_kl(batch):
    config = AlgorithmConfig(use_kl_in_reward=True, kl_clamp=0.25)
    rewards, metrics = rewards_of(batch, config, FixedKL(0.1))
    expected = [-0.025, 0.0, 1.0 - 0.025, 0.5 + 0.025, 0.0, 2.0 - 0.025]
    torch.testing.assert_close(rewards, torch.tensor(expected))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.25 - 0.25 + 0 + 0.125) / 4)


def test_the_kl_may_be_taken_off_after_comparing(batch):
    config = AlgorithmConfig(use_kl_in_reward=True, kl_order="after", norm_adv_by_std_in_grpo=False)
    done, _ = credit(batch, config, ADVANTAGES["grpo"], FixedKL(0.1))
    # group a compares 1.0 with 0.5, group b 0 (an empty response) with 2.0; then the KL from each token on
    expected = [[0.25 - 0.1, 0.0, 0.25 - 0.05], [-0.25 + 0.05], [], [1.0 - 0.2, 1.0 - 0.2]]
    assert done["advantages"].lists() == [pytest.approx(row) for row in expected]
    before, _ = credit(batch, replace(config, kl_order="before"), ADVANTAGES["grpo"], FixedKL(0.1))
    assert before["advantages"][1].tolist() != pytest.approx(expected[1])
    torch.testing.assert_close(before["token_level_rewards"].flat, done["token_level_rewards"].flat)


def test_bounds_hold_for_the_score_or_for_what_comparing_leaves(batch):
    config = AlgorithmConfig(norm_adv_by_std_in_grpo=False, reward_clip_range=[-0.5, 0.75])
    before, _ = credit(batch, config, ADVANTAGES["grpo"], FixedKL(0.0))
    # 1.0 -> 0.75 against 0.5; 0 against 2.0 -> 0.75
    assert before["advantages"].lists() == [[0.125, 0.0, 0.125], [-0.125], [], [0.375, 0.375]]
    assert before["token_level_rewards"].lists()[3] == [0.0, 0.75]
    after, _ = credit(batch, replace(config, kl_order="after"), ADVANTAGES["grpo"], FixedKL(0.0))
    assert after["advantages"].lists() == [[0.25, 0.0, 0.25], [-0.25], [], [0.75, 0.75]]


def test_the_options_of_the_estimators_are_the_configs(batch):
    values = batch.add(values=ragged([1, 7, 1], [1], [], [2, 1]))
    config = AlgorithmConfig(gamma=0.5, lam=0.5, whitening="mean", gae_observations="walk")
    done, _ = credit(values, config, ADVANTAGES["gae"], FixedKL(0.0))
    # the observation is a step of value 0: G_0 = 0 + 0.5 (0 + 0.25 x ...) by hand
    last = 1 - 1.0
    through = 0.5 * 1 + 0.25 * last
    first = (0 + 0.5 * 0 - 1) + 0.25 * through
    assert done["returns"].lists()[0] == pytest.approx([first + 1, 0.0, last + 1])
    own = done["advantages"].flat[[0, 2, 3, 4, 5]]
    assert float(own.mean()) == pytest.approx(0, abs=1e-6) and float(own.std()) != pytest.approx(1, abs=0.05)
    near = credit(batch, AlgorithmConfig(group_std_epsilon=1.0), ADVANTAGES["grpo"], FixedKL(0.0))[0]
    assert near["advantages"][1].tolist() == pytest.approx([-0.25 / (0.125**0.5 + 1)])


def test_in_bypass_mode_the_kl_is_the_engines(batch):
    engine = batch.add(rollout_log_probs=ragged([-1.5, -9.0, -2.5], [-1.0], [], [-0.5, -3.0]))
    config = AlgorithmConfig(use_kl_in_reward=True)
    done, metrics = credit(engine, config, ADVANTAGES["none"], FixedKL(0.1), "rollout_log_probs")
    assert metrics["actor/reward_kl_penalty"] == 0
    assert torch.equal(done["token_level_rewards"].flat, batch["token_level_scores"].flat)


def test_policy_filtration_weighs_rows_by_score(batch):
    config = AlgorithmConfig(use_pf_ppo=True)
    weight = filtrate(batch, config, seed=3, step=1)["weight"]
    assert weight.sum() == len(batch) and weight[2] == 0  # an empty response has score 0
    assert torch.equal(weight, filtrate(batch, config, seed=3, step=1)["weight"])
    places = ((3, 2), (4, 1), (3, 3), (5, 9))
    others = [filtrate(batch, config, seed=seed, step=step)["weight"] for seed, step in places]
    assert any(not torch.equal(weight, other) for other in others)
    only_best = replace(config, pf_ppo=PfPpoConfig(weight_pow=60.0))
    assert filtrate(batch, only_best, seed=3, step=1)["weight"].tolist() == [0, 0, 0, 4]
    assert filtrate(batch, AlgorithmConfig(), seed=3, step=1) is batch


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.entries = max([self.entries, *(x.numel() for x in made if isinstance(x, torch.Tensor))])
        return result


@pytest.mark.parametrize("order", ["before", "after"])
def test_credit_takes_memory_by_tokens_that_exist(order):
    """One row of 32,768 tokens among 1,000 of 30: 33 million slots if it were padded."""
    lengths = torch.full((1001,), 30)
    lengths[7] = 32_768
    responses = Ragged(torch.ones(int(lengths.sum()), dtype=torch.int64), lengths)
    generator = torch.Generator().manual_seed(0)
    names = ("token_level_scores", "old_log_probs", "rollout_log_probs", "ref_log_prob", "values")
    columns = {name: torch.randn(len(responses.flat), generator=generator) for name in names}
    batch = Batch(
        uid=[str(row // 7) for row in range(1001)],
        responses=responses,
        response_mask=Ragged.like((torch.rand(len(responses.flat), generator=generator) > 0.1).float(), responses),
        **{name: Ragged.like(flat, responses) for name, flat in columns.items()},
    )
    config = AlgorithmConfig(use_kl_in_reward=True, kl_order=order, reward_clip_range=[-10, 10], use_pf_ppo=True)
    correction = Correction(Weighting("sequence"), (Rejection("seq_max_k3", None, 2.0),), veto=0.1)
    with LargestTensor() as largest:
        for name in ("gae", "grpo"):
            done, _ = credit(correction.apply(batch)[0], config, ADVANTAGES[name], FixedKL(0.1))
            filtrate(done, config, seed=0, step=1)
    assert largest.entries <= len(responses.flat)
    assert done["advantages"].flat.isfinite().all()


def test_rows_of_one_sample_are_one_conversation():
    """Two rows of sample 0: its score counts once in the group, and both rows get its advantage."""
    rows = Batch(
        uid=["a", "a", "a"],
        sample=[0, 0, 1],
        responses=Ragged.of([[1, 1], [1], [1]], torch.int64),
        response_mask=ragged([1, 1], [1], [1]),
        token_level_scores=ragged([0, 0], [1.0], [0.0]),
    )
    done, _ = credit(rows, AlgorithmConfig(norm_adv_by_std_in_grpo=False), ADVANTAGES["grpo"], FixedKL(0.0))
    assert done["advantages"].flat.tolist() == [0.5, 0.5, 0.5, -0.5]


def test_turn_credit_reads_the_turns_of_a_batch():
    turns = [[Turn(0, 1, reward=1.0), Turn(1, 2, "tool"), Turn(2, 3)], [Turn(0, 1)]]
    rows = Batch(
        uid=["a", "a"],
        sample=[0, 1],
        responses=Ragged.of([[5, 9, 6], [5]], torch.int64),
        response_mask=ragged([1, 0, 1], [1]),
        token_level_scores=ragged([1.0, 0, 2.0], [0.5]),
        turns=turns,
    )
    config = AlgorithmConfig(norm_adv_by_std_in_grpo=False, turn_credit="return_to_go")
    done, _ = credit(rows, config, ADVANTAGES["grpo"], FixedKL(0.0))
    assert done["returns"].flat.tolist() == [3.0, 0.0, 2.0, 0.5]
    assert done["advantages"].flat.tolist() == [2.5, 0.0, 2.0, -2.5]
