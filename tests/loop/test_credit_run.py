"""Exact KL, policy filtration and the moving average in whole steps and runs."""

import pytest
import torch

from burnish.loop.fit import fit
from burnish.loop.state import resume

from ..stepping import one_step

ACTOR = "actor_rollout_ref.actor"


def letters(solution_str):
    """A reward that no two responses are likely to share."""
    return sum(map(ord, solution_str)) % 97 / 97


def steps(run, next_prompts, count=2):
    found = []
    for _ in range(count):
        found.append(one_step(run))
        run.step += 1
    return found


@pytest.mark.parametrize("more", [(), ("actor_rollout_ref.model.lora_rank=4",)], ids=["own model", "adapters off"])
def test_the_exact_kl_in_the_loss_starts_at_zero_and_grows(make_run, next_prompts, more):
    settings = (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=full", f"{ACTOR}.optim.lr=1e-2")
    run = make_run(*settings, *more, reward=letters)
    first, second = (metrics for _, metrics in steps(run, next_prompts))
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-5)
    assert second["actor/kl_loss"] > 1e-4


def test_the_exact_kl_in_the_reward(make_run, next_prompts):
    settings = ("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full", f"{ACTOR}.optim.lr=1e-2")
    run = make_run(*settings, "algorithm.kl_ctrl.kl_coef=0.1", reward=letters)
    (first, before), (second, after) = steps(run, next_prompts)
    assert before["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-5)
    assert after["actor/reward_kl_penalty"] > 1e-4
    exact = second["exact_kl"].flat
    assert float(exact.min()) > -1e-6  # the KL itself, unlike a sample of it
    expected = second["token_level_scores"].flat - 0.1 * exact * second["response_mask"].flat
    torch.testing.assert_close(second["token_level_rewards"].flat, expected)
    assert "exact_kl" in first


def test_policy_filtration_weighs_both_roles(make_run, next_prompts, weights):
    settings = ("algorithm.adv_estimator=gae", "critic.optim.lr=1e-3")
    run = make_run(*settings, "algorithm.use_pf_ppo=true", reward=letters)
    other = make_run(*settings, out="other", reward=letters)
    batch, _ = one_step(run)
    assert batch["weight"].sum() == len(batch) and batch["weight"].max() > 1
    plain, _ = one_step(other)
    assert torch.equal(plain["advantages"].flat, batch["advantages"].flat), "credit comes before the draw"
    for role in ("policy", "critic"):
        one, two = weights(getattr(run.learner, role)), weights(getattr(other.learner, role))
        assert any(not torch.equal(one[name], two[name]) for name in one)


def test_a_resumed_run_has_the_average_of_one_that_was_not_stopped(make_run):
    settings = (f"{ACTOR}.ema_beta=0.9", "trainer.save_freq=1")
    whole = make_run(*settings, "trainer.total_training_steps=3", out="whole")
    fit(whole)
    first = make_run(*settings, "trainer.total_training_steps=2", out="parts")
    fit(first)
    second = make_run(*settings, "trainer.total_training_steps=3", out="parts")
    resume(second)
    assert second.step == 2
    fit(second)
    one, other = (run.learner.policy.optimizer.average.weights for run in (whole, second))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], weight) for name, weight in second.learner.policy.weights() if name in one)
