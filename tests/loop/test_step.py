import pytest
import torch

from ..stepping import one_step


def test_each_phase_adds_its_columns(make_run, next_prompts):
    run = make_run("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true")
    batch, metrics = one_step(run)
    rooms = {"prompt_ids", "responses", "rollout_log_probs", "token_level_scores", "old_log_probs", "entropys"}
    rooms |= {"ref_log_prob", "values", "token_level_rewards", "advantages", "returns"}
    assert rooms <= set(batch)
    assert {"actor/pg_loss", "critic/vf_loss", "actor/reward_kl_penalty"} <= set(metrics)
    phases = {name.removeprefix("timing_s/") for name in run.clock.take()}
    taught = {"update_critic", "update_actor", "update_weights", "verify_weights"}
    assert phases == {"gen", "sleep", "old_log_prob", "ref", "values", "adv", "wake"} | taught


def test_phases_that_are_not_needed_do_not_run(make_run, next_prompts):
    run = make_run()
    batch, metrics = one_step(run)
    assert run.learner.critic is None and run.learner.reference is None
    assert "values" not in batch and "ref_log_prob" not in batch
    assert not any(name.startswith("critic/") for name in metrics)
    assert "old_log_probs" in batch, "read on the way, for the numbers of the step"


def test_the_engine_samples_with_the_new_weights(make_run, next_prompts):
    run = make_run()
    assert run.rollout.version == 1
    batch, _ = one_step(run)
    assert run.rollout.version == 2
    assert set(batch["weight_version"].flat.tolist()) == {1}
    run.step += 1
    batch, _ = one_step(run)
    assert set(batch["weight_version"].flat.tolist()) == {2}
    torch.testing.assert_close(batch["rollout_log_probs"].flat, batch["old_log_probs"].flat, rtol=0, atol=1e-4)


def test_the_cache_is_freed_during_updates(make_run, next_prompts):
    run = make_run("actor_rollout_ref.rollout.free_cache_engine=true")
    one_step(run)
    assert run.rollout.engine.stats()["sleeps"] == 1
    other = make_run("actor_rollout_ref.rollout.free_cache_engine=false", out="other")
    one_step(other)
    assert "sleeps" not in other.rollout.engine.stats()


def test_the_engine_keeps_its_weights_through_critic_warmup(make_run, next_prompts):
    """They were last sent before the first step, and the engine slept in between."""
    run = make_run("algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "critic.optim.lr=1e-3")
    for _ in range(3):
        batch, _ = one_step(run)
        run.step += 1
        assert set(batch["weight_version"].flat.tolist()) == {1}
        torch.testing.assert_close(batch["rollout_log_probs"].flat, batch["old_log_probs"].flat, rtol=0, atol=1e-4)
    assert run.rollout.version == 2, "the third step taught the policy"


def test_critic_warmup_updates_only_the_critic(make_run, next_prompts, weights, equal):
    run = make_run("algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "critic.optim.lr=1e-3")
    policy, critic = weights(run.learner.policy), weights(run.learner.critic)
    for _ in range(2):
        batch, metrics = one_step(run)
        run.step += 1
        assert "old_log_probs" in batch, "the mismatch is measured in these steps too"
        assert "actor/pg_loss" not in metrics and "critic/vf_loss" in metrics
    assert equal(weights(run.learner.policy), policy) and not equal(weights(run.learner.critic), critic)
    assert run.learner.policy.optimizer.updates == 0 and run.rollout.version == 1
    _, metrics = one_step(run)
    assert "actor/pg_loss" in metrics
    assert not equal(weights(run.learner.policy), policy)


@pytest.mark.parametrize(
    "overrides",
    [
        ("actor_rollout_ref.actor.ppo_epochs=2",),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=1",),
        ("algorithm.adv_estimator=gae", "trainer.critic_warmup=1"),
        (),
    ],
    ids=["epochs", "mini-batches", "critic only", "one update"],
)
def test_the_entropy_is_logged_in_every_step(make_run, next_prompts, overrides):
    """Also where the update does not compute it: several updates without an entropy bonus, or none."""
    batch, metrics = one_step(make_run(*overrides))
    entropy = batch["entropys"].flat[batch["response_mask"].flat.bool()]
    assert metrics["actor/entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)


def test_an_entropy_bonus_logs_the_entropy_of_its_updates(make_run, next_prompts):
    settings = ("actor_rollout_ref.actor.ppo_epochs=3", "actor_rollout_ref.actor.optim.lr=1e-2")
    _, plain = one_step(make_run(*settings))
    _, bonus = one_step(make_run(*settings, "actor_rollout_ref.actor.entropy_coeff=0.5", out="other"))
    assert bonus["actor/entropy"] > plain["actor/entropy"]


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_a_token_baseline_gets_its_columns_from_the_policy(make_run, next_prompts, name):
    run = make_run(f"algorithm.adv_estimator={name}", reward=lambda solution_str: len(set(solution_str)) / 7)
    batch, metrics = one_step(run)
    squares = batch["sum_pi_squared"].flat
    assert bool(((squares > 0) & (squares <= 1)).all())
    returns, advantages = batch["returns"].flat, batch["advantages"].flat
    assert not torch.equal(returns, advantages)
    assert "sum_pi_squared" not in one_step(make_run(out="other"))[0]
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize("loss", ["dppo_tv", "dppo_kl"])
def test_a_trust_region_loss_updates_the_policy(make_run, next_prompts, loss):
    mode = f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"
    narrow = ("actor_rollout_ref.actor.clip_ratio=0.001", "actor_rollout_ref.actor.optim.lr=1e-2")
    run = make_run(
        mode, *narrow, "actor_rollout_ref.actor.ppo_epochs=3", reward=lambda solution_str: len(set(solution_str)) / 7
    )
    _, metrics = one_step(run)
    assert metrics["actor/grad_norm"] > 0
    assert 0 < metrics["actor/pg_clipfrac"] < 1
